"""Timing of device work: CUDA events on a GPU, the host's clock on a CPU; medians with their range."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from evalsuite.foundation.efficiency import Spread


def time_each(work: Callable[[], object], repeats: int, device: torch.device) -> Spread:
    """Milliseconds of `work`, waiting for the device after each run."""
    return Spread.of([_time_once(work, device) for _ in range(repeats)])


def _time_once(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)
    torch.cuda.synchronize(device)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))


def time_steps(step: Callable[[], object], *, least: int, most: int, device: torch.device) -> Spread:
    """Milliseconds of one of many short steps, which are launched without waiting for each other.

    Args:
        step: starts one step.
        least: number of steps that are always run.
        most: number of steps after which timing ends; also after a quarter of a second.
        device: where they run.
    """
    seconds = 0.25
    if device.type != "cuda":
        times: list[float] = []
        while len(times) < most and (len(times) < least or sum(times) < 1000 * seconds):
            times.append(_time_once(step, device))
        return Spread.of(times)
    torch.cuda.synchronize(device)
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    start = time.perf_counter()
    while len(events) <= most and (len(events) <= least or time.perf_counter() - start < seconds):
        step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        # The host must not queue seconds of work ahead of the device: wait for the step before the last.
        events[-2].synchronize()
    events[-1].synchronize()
    return Spread.of([a.elapsed_time(b) for a, b in itertools.pairwise(events)])


def step_between(first: Spread, whole: Spread, steps: int) -> Spread | None:
    """Time of one of `steps` steps by which `whole` is longer than `first`.

    The ends are those of the subtracted intervals. None if the difference vanishes in noise.
    """
    if whole.median <= first.median:
        return None
    return Spread(
        (whole.median - first.median) / steps,
        max(whole.low - first.high, 0.0) / steps,
        (whole.high - first.low) / steps,
        whole.repeats,
    )


def time_responses(
    respond: Callable[[int], object], new_tokens: int, repeats: int, device: torch.device
) -> dict[str, Any]:
    """Fields of a measurement from whole responses: the time of their first token, and that of a step, by
    which `new_tokens` take longer than one.

    Args:
        respond: responds with a number of tokens.
        new_tokens: tokens of the longer response.
        repeats: of each.
        device: whose work is waited for.
    """
    first = time_each(lambda: respond(1), repeats, device)
    whole = time_each(lambda: respond(new_tokens), repeats, device)
    return {"ttft_ms": first, "step_ms": step_between(first, whole, new_tokens - 1)}

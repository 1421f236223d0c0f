"""Profile of a training step by kind of work and by kernel."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

KINDS = {
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitkreduce"),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "loss over the vocabulary": ("_row_loss",),
    "short convolution": ("conv1d", "_convolution", "_short_conv"),
    "norms and gates": ("norm", "glu", "swish"),
    "recurrence": ("chunk", "delta", "gla", "kda", "wy", "cumsum", "solve", "recompute", "fwd_kernel_h"),
    "optimizer": ("multi_tensor", "adam", "fused_adam"),
    "copies and fills": ("memcpy", "memset", "fill", "copy", "cat"),
}
"""Kind of work → substrings of its kernels' names; the first match wins."""


def kind_of(kernel: str) -> str:
    """The kind of work of a kernel, by its name."""
    name = kernel.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other")


def profile(step: Callable[[], Any], steps: int = 3) -> dict[str, Any]:
    """Run `step` under torch's profiler on CUDA.

    Returns:
        `wall_ms` and `device_ms` per step (their ratio is the GPU utilization), `kinds` (kind of work →
        milliseconds), and `kernels`: name, calls and milliseconds per step, longest first.
    """
    step()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    wall = start.elapsed_time(end) / steps
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as recorded:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kinds: dict[str, float] = defaultdict(float)
    kernels = []
    for entry in recorded.key_averages():
        on_device = entry.device_type == torch.autograd.DeviceType.CUDA and entry.self_device_time_total > 0
        # User annotations (such as an optimizer step) contain kernels that are listed separately.
        if not on_device or entry.is_user_annotation:
            continue
        milliseconds = entry.self_device_time_total / 1000 / steps
        kinds[kind_of(entry.key)] += milliseconds
        kernels.append({"kernel": entry.key, "calls": entry.count / steps, "ms": milliseconds})
    kernels.sort(key=lambda row: -row["ms"])
    return {
        "wall_ms": wall,
        "device_ms": sum(kinds.values()),
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
        "kernels": kernels,
    }


def profile_table(found: Mapping[str, Any], max_kernels: int = 40) -> str:
    """A profile as Markdown."""
    lines = [
        f"{found['wall_ms']:.1f} ms per step, {found['device_ms']:.1f} ms of it in kernels",
        "",
        "| work | ms per step | share |",
        "|---|---|---|",
    ]
    lines += [f"| {kind} | {ms:.2f} | {ms / found['device_ms']:.0%} |" for kind, ms in found["kinds"].items()]
    lines += ["", "| kernel | calls per step | ms per step |", "|---|---|---|"]
    lines += [
        f"| `{row['kernel'][:100]}` | {row['calls']:.0f} | {row['ms']:.2f} |"
        for row in found["kernels"][:max_kernels]
    ]
    return "\n".join(lines)

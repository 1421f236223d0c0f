"""Measurements in the in-process engine: real requests, and decode batches with synthetic caches.

The time of a decode step depends on the shapes of its caches, not on their values. Decode batches therefore
repeat the states of a short text: a sweep over batch sizes would otherwise spend its time on prefills, and
could not reach batches whose prefill does not fit.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from evalsuite.foundation.efficiency import EfficiencyRow, Kind, Spread
from evalsuite.models.benchmark.points import Point
from evalsuite.models.benchmark.subject import MAX_NEW_TOKENS, InProcessBenchmark
from evalsuite.models.benchmark.timing import time_each, time_steps
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference.sampling import SamplingMetadata
from evalsuite.models.inference.torch.cuda_graphs import step_function
from evalsuite.models.inference.torch.kv_cache import KVCache, LayerState
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import KEY_BLOCK, DecodeBatch

WARM_UP_TOKENS = 8192
"""Longest prompt of a warm-up: longer ones are timed once, and their kernels are those of this length."""
MIN_ENERGY_SECONDS = 0.2
"""Shortest time over which NVML's energy counter, which is updated every few milliseconds, is read."""


SHORT_TOKENS = 64
"""Tokens of the text whose states are repeated."""


class TorchBenchmark(InProcessBenchmark):
    """Measures a loaded model through the parts of the in-process engine.

    Args:
        runner: runs the model's passes, as in the engine.
        checkpoint: its model.
        random_weights: whether they are.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"request", "decode"})

    def __init__(self, runner: ModelRunner, checkpoint: Checkpoint, *, random_weights: bool = False) -> None:
        super().__init__(checkpoint, "torch", random_weights=random_weights)
        self.runner = runner

    def measure(self, point: Point) -> EfficiencyRow:
        self.subject.check_positions(point.context + MAX_NEW_TOKENS)
        self.gpu.begin_point()
        with torch.inference_mode():
            return self._request(point) if point.kind == "request" else self._decode(point)

    def most_sequences(self, context: int) -> int:
        """From the config and the free memory; on a CPU 8 at most."""
        per_sequence = self.subject.cache_bytes(context + MAX_NEW_TOKENS) or 1
        if self.device.type != "cuda":
            return 8
        return max(1, int(torch.cuda.mem_get_info(self.device)[0] // per_sequence))

    def _request(self, point: Point) -> EfficiencyRow:
        prompts = self._prompts(point)
        found: list[KVCache] = []

        def first_token() -> None:
            # The cache of the run before would count as memory of this one.
            found.clear()
            hidden, cache = self.runner.prefill(prompts, keep=True)
            assert cache is not None
            self.runner.head.logits(hidden[:, -1]).argmax(-1)
            found.append(cache)

        if point.context * point.batch <= WARM_UP_TOKENS:
            first_token()
        else:
            self.runner.prefill([row[:WARM_UP_TOKENS] for row in prompts[:1]])
        ttft = time_each(first_token, point.repeats, self.device)
        cache = found.pop()
        size = sum(tensor.nbytes for layer in cache.layers for tensor in layer.tensors()) // point.batch
        batch = allocate_batch(self.runner, cache, point.batch, point.context)
        batch.cache.write(range(point.batch), cache)
        del cache
        step, joules = self._steps(batch, point)
        return self.subject.row(
            point, ttft_ms=ttft, step_ms=step, joules=joules, cache_bytes=size, **self.gpu.facts()
        )

    def _decode(self, point: Point) -> EfficiencyRow:
        batch = synthetic_batch(self.runner, point.batch, point.context)
        size = sum(
            tensor[:, :, : point.context].nbytes
            for layer in batch.cache.layers
            for tensor in (layer.keys, layer.values)
            if tensor is not None
        )
        size += sum(tensor.nbytes for layer in batch.cache.layers for tensor in layer.recurrent.values())
        step, joules = self._steps(batch, point)
        return self.subject.row(
            point,
            detail="synthetic cache",
            step_ms=step,
            joules=joules,
            cache_bytes=size // point.batch,
            **self.gpu.facts(),
        )

    def _steps(self, batch: DecodeBatch, point: Point) -> tuple[Spread, float | None]:
        """Time of a decode step, and energy per generated token."""
        step = step_function(batch)

        def run() -> None:
            step(point.batch, batch.cache.capacity)

        # The first step of a shape runs eagerly, the second is captured.
        for _ in range(3):
            run()
        if point.kind == "request":
            # NVML's counter lags, and would count the end of the prefill.
            time_steps(run, least=1, most=200, device=self.device)
        before = self.gpu.millijoules()
        times = time_steps(run, least=5, most=200, device=self.device)
        after = self.gpu.millijoules()
        seconds = times.median * times.repeats / 1000
        if before is None or after is None or seconds < MIN_ENERGY_SECONDS:
            return times, None
        return times, (after - before) / 1000 / (times.repeats * point.batch)

    def _prompts(self, point: Point) -> list[Any]:
        """Rows of token ids as arrays, so that no time goes into converting lists."""
        draw = np.random.default_rng(0)
        return list(draw.integers(self.runner.vocab_size, size=(point.batch, point.context)))


def allocate_batch(runner: ModelRunner, sample: KVCache, num_seqs: int, context: int) -> DecodeBatch:
    """A decode batch with empty caches for `MAX_NEW_TOKENS` after `context` tokens, as the scheduler
    allocates it."""
    capacity = -(-(context + MAX_NEW_TOKENS) // KEY_BLOCK) * KEY_BLOCK
    greedy = SamplingMetadata.allocate(num_seqs, (), runner.device)
    batch = DecodeBatch(runner, sample, greedy, num_seqs, capacity)
    batch.position.fill_(context)
    return batch


@torch.inference_mode()
def synthetic_batch(runner: ModelRunner, num_seqs: int, context: int) -> DecodeBatch:
    """A decode batch whose sequences have `context` tokens, each with states of a short random text.

    Raises:
        torch.OutOfMemoryError: the caches do not fit.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(runner.vocab_size, (min(SHORT_TOKENS, context),), generator=generator)
    _, short = runner.prefill([tokens.tolist()], keep=True)
    assert short is not None
    batch = allocate_batch(runner, short, num_seqs, context)
    for stored, source in zip(batch.cache.layers, short.layers, strict=True):
        _fill(stored, source, context)
    batch.token.copy_(tokens[-1].to(runner.device))
    return batch


def _fill(stored: LayerState, source: LayerState, context: int) -> None:
    """Repeat the single row of `source` over all rows, its keys and values also over `context` tokens."""
    for mine, short in ((stored.keys, source.keys), (stored.values, source.values)):
        if mine is not None and short is not None:
            _repeat_tokens(mine, short, context)
    for name, state in source.recurrent.items():
        stored.recurrent[name].copy_(state.expand_as(stored.recurrent[name]))
        if name == "length":
            stored.recurrent[name].fill_(context)


def _repeat_tokens(target: Tensor, short: Tensor, context: int) -> None:
    """Fill `target` [R, H, L, D] up to `context` with `short` [1, H, T, D], again and again."""
    length = min(short.shape[2], context)
    whole = context // length * length
    target[:, :, :whole].unflatten(2, (-1, length)).copy_(short[:, :, None, :length])
    target[:, :, whole:context] = short[:, :, : context - whole]

"""Throughput and memory of a checkpoint on this machine: prefill, decode, cache and peak memory."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from evalsuite.foundation import ConfigError, locked, read_jsonl, write_text
from evalsuite.foundation.hashing import canonical_json
from evalsuite.models.checkpoints import Checkpoint
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.torch.engine import TorchEngine

SCHEMA = 1
NUM_GENERATED = 32
SECONDS = 2.0
"""Time spent on one measurement, unless its first run takes longer."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """One measurement; the fields are those of `evalsuite.reports.records.sidecars.Cost`.

    Args:
        prefill_tokens_per_second: prompt tokens, all sequences together.
        decode_tokens_per_second: generated tokens, all sequences together.
        state_bytes: keys, values and recurrent states of one sequence after `context` tokens.
        peak_bytes: peak memory allocated on the GPU, weights included; None on a CPU.
        device: name of the GPU, or the number of CPU threads.
    """

    weights_id: str
    context: int
    batch: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    state_bytes: int
    peak_bytes: int | None
    device: str
    schema: int = SCHEMA

    def key(self) -> tuple[Any, ...]:
        """Identity of a measurement; a later one with the same key replaces it."""
        return self.weights_id, self.context, self.batch, self.device


def measure_throughput(checkpoint: Checkpoint, context: int, batch: int = 1) -> Throughput:
    """Prefill `batch` random prompts of `context` tokens and generate greedily, in the in-process engine.

    Raises:
        ConfigError: a context or batch below 1, or too many positions for the model.
        torch.OutOfMemoryError: the batch does not fit.
    """
    if context < 1 or batch < 1:
        raise ConfigError(f"context {context}, batch {batch}: both must be at least 1")
    engine = TorchEngine(checkpoint, batch_tokens=context * batch)
    if context + NUM_GENERATED > engine.max_length:
        raise ConfigError(
            f"{checkpoint.label}: {context} tokens and {NUM_GENERATED} generated ones exceed its "
            f"{engine.max_length} positions"
        )
    # No end-of-sequence tokens, so that every response has the full length.
    engine.eos_ids = frozenset()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(engine.runner.vocab_size, (batch, context), generator=generator).tolist()
    prompts = [tuple(row) for row in tokens]

    def generate(count: int) -> None:
        requests = [GenerateRequest(prompt, SamplingParams(count)) for prompt in prompts]
        for _, response in engine.generate(requests):
            assert len(response.tokens) == count, response

    on_gpu = engine.runner.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    generate(NUM_GENERATED)
    prefill, total = best_time(lambda: generate(1)), best_time(lambda: generate(NUM_GENERATED))
    num_decoded = batch * (NUM_GENERATED - 1)
    return Throughput(
        weights_id=checkpoint.weights_id,
        context=context,
        batch=batch,
        prefill_tokens_per_second=round(batch * context / prefill, 1),
        # On a busy machine the difference of the two times can vanish in noise.
        decode_tokens_per_second=round(num_decoded / max(total - prefill, 0.01 * total), 1),
        state_bytes=engine.runner.state_bytes_per_seq + context * engine.runner.kv_bytes_per_token,
        peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        device=torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads",
    )


def best_time(work: Callable[[], None]) -> float:
    """Seconds of the fastest of up to five runs."""
    times: list[float] = []
    while not times or (sum(times) < SECONDS and len(times) < 5):
        gc.collect()
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def save_throughput(path: Path, measured: Throughput) -> None:
    """Write a measurement to a JSON Lines file, replacing an earlier one with the same key.

    Raises:
        RunFolderError: the file cannot be written.
    """
    with locked(path.with_name(f".{path.name}.lock")):
        names = ("weights_id", "context", "batch", "device")
        rows = [row for row in read_jsonl(path) if tuple(row.get(name) for name in names) != measured.key()]
        rows.append(asdict(measured))
        write_text(path, "".join(f"{canonical_json(row)}\n" for row in rows))


def format_throughput(measurements: Sequence[tuple[str, Throughput]]) -> str:
    """Text table of (checkpoint label, measurement)."""
    lines = [
        f"{'checkpoint':<26}{'context':>8}{'batch':>6}{'prefill tok/s':>15}{'decode tok/s':>14}"
        f"{'state MiB':>11}{'peak MiB':>10}"
    ]
    for label, measured in measurements:
        peak = "–" if measured.peak_bytes is None else f"{measured.peak_bytes / 2**20:,.0f}"
        lines.append(
            f"{label:<26}{measured.context:>8,}{measured.batch:>6}{measured.prefill_tokens_per_second:>15,.0f}"
            f"{measured.decode_tokens_per_second:>14,.0f}{measured.state_bytes / 2**20:>11.2f}{peak:>10}"
        )
    return "\n".join([*lines, f"on {measurements[-1][1].device}"]) if measurements else "no measurements"

"""What a checkpoint costs where it runs: reading, writing, state and peak memory."""

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
from evalsuite.models.engine.requests import GenerateRequest, Sampling
from evalsuite.models.engine.torch_engine import TorchEngine

SCHEMA = 1
NEW_TOKENS = 32
SECONDS = 2.0
"""How long one number is measured for, unless its first run takes longer."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One measurement, the fields of `evalsuite.reports.extras.Cost`.

    Args:
        prefill_tokens_per_second: tokens read, all sequences together.
        decode_tokens_per_second: tokens written after the prompt, all sequences together.
        state_bytes: keys, values and recurrent states of one sequence after `context` tokens.
        peak_bytes: most memory held on the GPU, weights included; None on a CPU.
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
        """What a later measurement replaces."""
        return self.weights_id, self.context, self.batch, self.device


def measure(checkpoint: Checkpoint, context: int, batch: int = 1) -> Cost:
    """Read `batch` drawn prompts of `context` tokens and write after them, greedily, in the engine.

    Raises:
        ConfigError: a context or batch below 1, or more positions than the model has.
        torch.OutOfMemoryError: they do not fit.
    """
    if context < 1 or batch < 1:
        raise ConfigError(f"context {context}, batch {batch}: both must be at least 1")
    engine = TorchEngine(checkpoint, batch_tokens=context * batch)
    if context + NEW_TOKENS > engine.max_length:
        raise ConfigError(
            f"{checkpoint.label}: {context} tokens and {NEW_TOKENS} written ones do not fit into its "
            f"{engine.max_length} positions"
        )
    # An answer must not end early: nothing measured depends on which tokens these are.
    engine.eos = frozenset()
    make = torch.Generator().manual_seed(0)
    drawn = torch.randint(engine.decoder.vocabulary, (batch, context), generator=make).tolist()
    rows = [tuple(row) for row in drawn]

    def write(count: int) -> None:
        for _, answer in engine.generate([GenerateRequest(row, Sampling(count)) for row in rows]):
            assert len(answer.tokens) == count, answer

    on_gpu = engine.decoder.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    write(NEW_TOKENS)
    first, all_of = quickest(lambda: write(1)), quickest(lambda: write(NEW_TOKENS))
    written = batch * (NEW_TOKENS - 1)
    return Cost(
        weights_id=checkpoint.weights_id,
        context=context,
        batch=batch,
        prefill_tokens_per_second=round(batch * context / first, 1),
        # A short answer can be as quick as none within the noise of a busy machine.
        decode_tokens_per_second=round(written / max(all_of - first, 0.01 * all_of), 1),
        state_bytes=engine.decoder.row_bytes + context * engine.decoder.token_bytes,
        peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        device=torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads",
    )


def quickest(work: Callable[[], None]) -> float:
    """Seconds of the quickest of some runs."""
    found: list[float] = []
    while not found or (sum(found) < SECONDS and len(found) < 5):
        gc.collect()
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def keep(path: Path, cost: Cost) -> None:
    """Put a measurement into a JSON lines file, in place of an earlier one of the same thing.

    Raises:
        RunFolderError: the file cannot be written.
    """
    with locked(path.with_name(f".{path.name}.lock")):
        same = ("weights_id", "context", "batch", "device")
        rows = [row for row in read_jsonl(path) if tuple(row.get(name) for name in same) != cost.key()]
        rows.append(asdict(cost))
        write_text(path, "".join(f"{canonical_json(row)}\n" for row in rows))


def table(costs: Sequence[tuple[str, Cost]]) -> str:
    """Measurements with the labels of their checkpoints, as text."""
    lines = [
        f"{'checkpoint':<26}{'context':>8}{'batch':>6}{'read tok/s':>12}{'write tok/s':>12}{'state MiB':>11}"
        f"{'peak MiB':>10}"
    ]
    for label, cost in costs:
        peak = "–" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:,.0f}"
        lines.append(
            f"{label:<26}{cost.context:>8,}{cost.batch:>6}{cost.prefill_tokens_per_second:>12,.0f}"
            f"{cost.decode_tokens_per_second:>12,.0f}{cost.state_bytes / 2**20:>11.2f}{peak:>10}"
        )
    return "\n".join([*lines, f"on {costs[-1][1].device}"]) if costs else "nothing was measured"

"""Use of the GPU: throughput, MFU and memory as metrics, and what to change when its memory is exhausted."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from evalsuite.distill.model_cost import ModelCost
from evalsuite.distill.objectives.end_to_end import EndToEndStage
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.callbacks.interface import TrainingError
from evalsuite.distill.training.memory.estimate import stage_memory
from evalsuite.distill.training.placement import is_sharded

TrainingCosts = tuple[ModelCost | None, Sequence[ModelCost]]
"""Those of the teacher and of every student."""

PEAK_FLOPS = {"NVIDIA H200": 790e12, "NVIDIA H100 80GB HBM3": 790e12}
"""Dense bf16 FLOP/s of a matrix product, measured on random data, by the name of the device."""

MIN_SECONDS = 0.1
"""Shortest time over which a throughput is measured; values of two steps may be read together."""


@dataclass
class GpuUsage:
    """Measures one stage on one GPU.

    Args:
        flops_per_token: of teacher and all students, without recomputation (see `Stage.flops_per_token`).
        world_size: GPUs that share the tokens.
        peak_flops: None for a device of which it is not known; MFU is then left out.
    """

    flops_per_token: float
    world_size: int = 1
    peak_flops: float | None = None
    _last: tuple[int, float] | None = field(default=None, init=False)

    def measure(self, tokens: int, now: float | None = None) -> dict[str, float]:
        """Columns of `metrics.jsonl`: `tokens_per_second` and `mfu` since the last ones, and `memory_gb`, the
        peak of the process. Within `MIN_SECONDS` of the last ones, the peak alone.

        Args:
            tokens: tokens trained on in the whole run.
            now: seconds of a clock; default: now.
        """
        now = time.monotonic() if now is None else now
        found = {}
        if self._last is None:
            self._last = tokens, now
        elif now - self._last[1] >= MIN_SECONDS:
            rate = (tokens - self._last[0]) / (now - self._last[1])
            self._last = tokens, now
            found["tokens_per_second"] = float(f"{rate:.5g}")
            if self.peak_flops is not None:
                mfu = rate * self.flops_per_token / self.world_size / self.peak_flops
                found["mfu"] = float(f"{mfu:.4g}")
        found["memory_gb"] = float(f"{torch.cuda.max_memory_allocated() / 1e9:.4g}")
        return found


@contextmanager
def explain_out_of_memory(
    recipe: Recipe, stage: Stage, costs: Callable[[], TrainingCosts], *, bf16: bool, world_size: int
) -> Iterator[None]:
    """Replace torch's error by one that says which option saves how much.

    Raises:
        TrainingError: the GPU's memory is exhausted within this context.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        options = memory_options(recipe, stage, *costs(), bf16=bf16, world_size=world_size)
        advice = "; ".join(f"{option} saves about {saved / 1e9:.1f} GB" for option, saved in options)
        reason = str(error).split(". ")[0]
        raise TrainingError(
            f"stage '{stage.name}': GPU memory is exhausted ({reason}). By estimate: {advice}. "
            "Another recipe needs a new run folder"
        ) from error


def memory_options(
    recipe: Recipe,
    stage: Stage,
    teacher: ModelCost | None,
    students: Sequence[ModelCost],
    *,
    bf16: bool,
    world_size: int,
) -> list[tuple[str, float]]:
    """Options that need less memory, and the bytes that each saves on a GPU, largest first."""
    shards = world_size if is_sharded(recipe, (teacher or students[0]).num_params, world_size) else 1
    now = stage_memory(teacher, students, stage, bf16=bf16, shards=shards)

    def saved(changed: Stage = stage, count: int = len(students), shards: int = shards) -> float:
        return now - stage_memory(teacher, students[:count], changed, bf16=bf16, shards=shards)

    key = f"--set stages.{stage.name}"
    options = []
    micro = stage.micro_batch_size or stage.batch_size
    if micro > 1:
        smaller = next(size for size in range(micro // 2, 0, -1) if stage.batch_size % size == 0)
        changed = stage.model_copy(update={"micro_batch_size": smaller})
        options.append((f"{key}.micro_batch_size={smaller} (now {micro})", saved(changed)))
    half = stage.seq_len // 2
    changed = stage.model_copy(update={"seq_len": half})
    options.append((f"{key}.seq_len={half} (now {stage.seq_len})", saved(changed)))
    if isinstance(stage, EndToEndStage) and not stage.recomputes_blocks:
        changed = stage.model_copy(update={"activation_checkpointing": "block"})
        options.append(
            (f"{key}.activation_checkpointing=block, which takes a third more time", saved(changed))
        )
    if stage.optimizer.kind == "adamw" and stage.optimizer.state_bits == 32:
        optimizer = stage.optimizer.model_copy(update={"state_bits": 8})
        changed = stage.model_copy(update={"optimizer": optimizer})
        options.append((f"{key}.optimizer.state_bits=8 (extra lowbit)", saved(changed)))
    if len(students) > 1:
        options.append(("--mixer with one mixer at a time", saved(count=1)))
    for smaller_set in ("no_mlp", *(["mixer"] if all(student.replaced for student in students) else [])):
        if stage.trainable_set not in ("mixer", "mixer_qk", smaller_set):
            changed = stage.model_copy(update={"trainable": smaller_set})
            options.append((f"{key}.trainable={smaller_set} (now {stage.trainable_set})", saved(changed)))
    if world_size > 1 and shards == 1:
        options.append(("--set sharding=full", saved(shards=world_size)))
    elif world_size == 1:
        options.append(("two GPUs (torchrun --nproc-per-node 2) with --set sharding=full", saved(shards=2)))
    return sorted((option for option in options if option[1] > 0), key=lambda option: -option[1])

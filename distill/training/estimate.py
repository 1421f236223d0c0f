"""Cost estimate of a recipe from model configurations alone, and advice when memory is exhausted.

FLOPs count matrix products (two per multiply-add). Memory and time are estimates under the stated
assumptions.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.data.teacher_store import row_type
from evalsuite.distill.objectives.end_to_end import EndToEndStage, KnowledgeDistillation, OnPolicyDistillation
from evalsuite.distill.optim.optimizers import AdamW
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.trainable import names_in_set, places
from evalsuite.distill.training.builders import (
    TrainingModels,
    architecture_config,
    load_architecture_tokenizer,
    new_student_config,
    override_mixers,
    resolve_layer_selection,
)
from evalsuite.distill.training.loop import TrainingError
from evalsuite.distill.training.placement import is_sharded
from evalsuite.foundation import ConfigError, counted, nearest
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.models.decoder.cost import PEAK_FLOPS, ModelCost, count

MODEL_SHAPES = Path(__file__).with_name("model_shapes.yaml")
CPU_FLOPS_PER_CORE = 3e10
CUBLAS_WORKSPACE = 2**25
"""Bytes that torch allocates on Hopper for cuBLAS (8 MiB on other GPUs), once for each stream and each thread
that multiplies matrices there."""
MFU = {"small": 0.20, "large": 0.32}
"""Share of the peak of an H200 that models below and above 1B parameters reach."""


@dataclass(frozen=True)
class StageEstimate:
    """Cost of one stage, summed over students."""

    name: str
    objective: str
    tokens: int
    steps: int
    flops: float
    memory: float
    """Bytes per GPU."""
    seconds: float
    store: float = 0.0
    """Bytes of the teacher store at most, if every token is in the loss; 0 without one."""


@dataclass(frozen=True)
class Estimate:
    """The cost of a recipe; `str` formats it as a table."""

    recipe: str
    labels: tuple[str, ...]
    num_params: int
    device: str
    stages: tuple[StageEstimate, ...]

    @property
    def tokens(self) -> int:
        """Tokens over all stages, shared by all students."""
        return sum(stage.tokens for stage in self.stages)

    @property
    def flops(self) -> float:
        """FLOPs over all stages and students."""
        return sum(stage.flops for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Expected training time."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def memory(self) -> float:
        """Peak bytes per GPU over all stages."""
        return max(stage.memory for stage in self.stages)

    @property
    def steps(self) -> int:
        """Optimizer steps over all stages."""
        return sum(stage.steps for stage in self.stages)

    def __str__(self) -> str:
        title = (
            f"{self.recipe}: {', '.join(self.labels)} from {self.num_params / 1e6:,.1f}M parameters, "
            f"on {self.device}"
        )
        lines = [(stage.name, stage.objective, stage) for stage in self.stages]
        stores = [
            f"\nteacher store of stage {stage.name}: up to {_bytes(stage.store)}, made once (--make-stores)"
            for stage in self.stages
            if stage.store
        ]
        return _table(title, ("stage", "objective"), [*lines, ("total", "", self)]) + "".join(stores)


def summary(estimates: Sequence[tuple[str, Estimate]]) -> str:
    """Format the costs of a recipe and its variants, with their names, as a table with one line each."""
    flops, seconds = (sum(getattr(each, of) for _, each in estimates) for of in ("flops", "seconds"))
    title = (
        f"{counted(len(estimates), 'run')} on {estimates[0][1].device}: {flops:.1e} FLOPs, {_time(seconds)}"
    )
    lines = [(name, ", ".join(each.labels), each) for name, each in estimates]
    return _table(title, ("variant", "students"), lines)


def _table(
    title: str, names: tuple[str, str], lines: Sequence[tuple[str, str, StageEstimate | Estimate]]
) -> str:
    first, second = (
        max(len(each) for each in column) for column in zip(names, *(x[:2] for x in lines), strict=True)
    )
    rows = [
        f"{names[0]:<{first}} {names[1]:<{second}} {'tokens':>15} {'steps':>9} "
        f"{'FLOPs':>9} {'memory':>9} {'time':>9}"
    ]
    rows += [
        f"{name:<{first}} {what:<{second}} {cost.tokens:>15,} {cost.steps:>9,} "
        f"{cost.flops:>9.1e} {_bytes(cost.memory):>9} {_time(cost.seconds):>9}"
        for name, what, cost in lines
    ]
    note = (
        "FLOPs are counted; memory and time are estimates (20 % MFU on an H200 below 1B parameters, "
        "32 % above; 30 GFLOP/s per CPU core)."
    )
    return "\n".join([title, *rows, note])


def dry_run(recipe: Recipe, *, mixers: Sequence[str] | None = None, device: str | None = None) -> Estimate:
    """Estimate tokens, FLOPs, memory and time of a recipe from model configurations alone.

    Raises:
        ConfigError: the teacher's configuration is not available offline.
    """
    recipe = resolve_layer_selection(override_mixers(recipe, mixers))
    base, teacher, students = recipe_costs(recipe)
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    bf16 = recipe.precision == "bf16" or (recipe.precision == "auto" and on_gpu)
    num_params = base.num_params
    rate = PEAK_FLOPS["H200"] * MFU["small" if num_params < 1e9 else "large"]
    if not on_gpu:
        rate = CPU_FLOPS_PER_CORE * (os.cpu_count() or 1)
    stages = []
    for stage in recipe.stages:
        tokens = stage.steps * stage.tokens_per_step
        flops = tokens * stage.flops_per_token(teacher, students)
        others = trained_elsewhere(recipe, stage)
        memory = stage_memory(teacher, students, stage, others, bf16=bf16, on_gpu=on_gpu)
        store = 0
        if isinstance(stage, KnowledgeDistillation) and stage.store is not None:
            store = tokens * row_type(stage.stored_k, base.config.vocab_size).itemsize
        stages.append(
            StageEstimate(
                stage.name, stage.objective, tokens, stage.steps, flops, memory, flops / rate, store
            )
        )
    device_name = "one H200-class GPU" if on_gpu else f"{os.cpu_count()} CPU cores"
    return Estimate(recipe.name, tuple(recipe.labels), num_params, device_name, tuple(stages))


def stage_memory(
    teacher: ModelCost | None,
    students: Sequence[ModelCost],
    stage: Stage,
    other_sets: Collection[str],
    *,
    bf16: bool,
    on_gpu: bool,
    shards: int = 1,
) -> float:
    """Bytes on one device: weights, gradients, optimizer states, teacher, activations and logits.

    For one student, that is the peak of allocated memory: between 5 % less and 5 % more in nine stages of
    SmolLM2-135M's shape on an H200, and 11 % less to 6 % more in three of Gemma 3 270M's (see
    tests/distill/training/test_estimate.py). Of students that run at a
    time, a captured graph holds all activations, as each stream has its own memory, while the peak of
    allocated memory has those of one: they are captured one after another (four students, kd, 4 × 1,024
    tokens: 31 GB by estimate, 17 with the activations of one; 17.5 allocated were measured, 0.5 of them the
    benchmark's own. The memory that such a run reserves was not measured).

    Args:
        other_sets: trainable sets of the recipe's other stages: what any stage trains has its own weights and
            fp32 masters from the start to the end of a run.
        on_gpu: count what cuBLAS takes.
        shards: GPUs over which teacher and students are sharded.
    """
    width, states = 2 if bf16 else 4, stage.optimizer.state_bytes
    present = teacher if stage.loads_teacher else None
    total = 0.0 if present is None else width * present.num_params
    for student in students:
        trained, masters, shared = _parameter_counts(student, stage.trainable_set, other_sets)
        held = student.num_params
        if present is not None and shards == 1:
            # With shards, each model has its own frozen weights.
            held -= shared
        if shards == 1 and bf16:
            total += width * held + 4 * masters
        else:
            # In fp32, weights are the master weights; FSDP casts shards as it gathers them.
            total += 4 * masters + width * (held - masters)
        total += (4 + states) * trained
        if isinstance(stage, OnPolicyDistillation) and stage.num_rollouts:
            # The copy that generates, and what it reads of the rollouts (see `training.rollouts`).
            cache = student.cache(torch.bfloat16 if bf16 else torch.float32)
            assert cache is not None, "a student's layers are known"
            total += width * student.num_params + stage.rollout_slots * cache.at(stage.seq_len)
    total /= shards
    if shards > 1:
        models = [*students, *([] if present is None else [present])]
        block = max(student.largest_block_params for student in students)
        outside = max(student.embedding_params for student in students)
        # Gathered: what is outside of blocks, and two blocks. Reduced in fp32: the gradients of one of these.
        total += width * (sum(each.embedding_params for each in models) + 2 * block) + 4 * max(outside, block)
    # As `TrainStep` captures graphs; eagerly, students run one after another on one stream.
    dense = stage.packing == "concat" and stage.loss_mask == "full"
    captured = on_gpu and dense and shards == 1 and stage.sequence_parallel == 1
    concurrent = stage.num_concurrent(len(students)) if captured else 1
    if on_gpu:
        # Forward and backward pass of eager steps; of a graph its own stream, the teacher's, and both passes
        # of each student.
        total += (2 + captured * (2 + 2 * len(students))) * CUBLAS_WORKSPACE
    stored = not (stage.is_layerwise or stage.recomputes_blocks)
    activations = max(
        stage.activation_bytes(student, width) + _mask_bytes(student, stage, width, stored=stored)
        for student in students
    )
    if present is not None:
        total += stage.shared_logits_bytes(len(students), present.config.vocab_size, width)
    masks = 0.0 if present is None else _mask_bytes(present, stage, width, stored=False)
    return total + max(masks, concurrent * activations)


def _mask_bytes(model: ModelCost, stage: Stage, width: int, *, stored: bool) -> float:
    """Bytes of the masks of a model's softmax attention in one micro-batch; plain causal attention has none.

    Args:
        stored: whether the backward pass needs the copy, in the model's dtype, that every layer makes of a
            boolean mask; that of a part of a sequence is not boolean.
    """
    packed, parts = stage.packing == "documents", stage.sequence_parallel > 1
    spans = model.spans(packed=packed)
    if not (packed or parts):
        spans = [span for span in spans if span.window is not None and span.window < stage.seq_len]
    copies = len(spans) if stored and not parts else min(1, len(spans))
    return stage.micro_batch_tokens * stage.seq_len * (copies * width + (copies > 0 and not parts))


def trained_elsewhere(recipe: Recipe, stage: Stage) -> set[str]:
    """Trainable sets of a recipe's other stages."""
    return {each.trainable_set for each in recipe.stages if each.name != stage.name}


def _parameter_counts(
    student: ModelCost, trainable_set: str, other_sets: Collection[str]
) -> tuple[int, int, int]:
    """Parameters in a set, in this or others, and in none that a new student shares with its teacher."""
    parameters, found = dict(student.model.named_parameters()), places(student.model)
    trained = names_in_set(found, trainable_set)
    masters = {*trained, *(name for each in other_sets for name in names_in_set(found, each))}
    shared = [name for name, at in found.items() if not (at.is_mixer or name in masters)]

    def size(names: Iterable[str]) -> int:
        return count(parameters[name] for name in names)

    return size(trained), size(masters), size(shared)


def recipe_costs(recipe: Recipe) -> tuple[ModelCost, ModelCost | None, list[ModelCost]]:
    """The costs of the model that the students come from, of the teacher and of the students."""
    if recipe.architecture is not None:
        tokenizer = load_architecture_tokenizer(recipe.architecture)
        cost = ModelCost.of(architecture_config(recipe.architecture, tokenizer))
        return cost, None, [cost]
    student = recipe.student
    path = recipe.teacher or student.shape_from or next(iter(student.initial_checkpoints.values()))
    config = _config(path)
    base = ModelCost.of(config)
    students = [ModelCost.of(_student_config(recipe, label, config)) for label in recipe.labels]
    return base, None if recipe.teacher is None else base, students


def _config(path: str) -> Any:
    from transformers import LlamaConfig

    from evalsuite.foundation import EvalsuiteError
    from evalsuite.models.checkpoints.load import load_config

    known = read_yaml(MODEL_SHAPES)
    model, _, _ = path.partition("@")
    if model in known:
        return LlamaConfig(**{"tie_word_embeddings": True, **known[model]})
    try:
        return load_config(path)
    except EvalsuiteError as error:
        raise ConfigError(f"the shape of '{path}' is not available{nearest(path, known)} ({error})") from None


def _student_config(recipe: Recipe, label: str, base: Any) -> Any:
    """That of the checkpoint which a student continues from, if it is there, or that of a new student."""
    path = recipe.student.initial_checkpoints.get(label)
    if path is not None and Path(path).is_dir():
        return _config(path)
    return base if hasattr(base, "mixers") else new_student_config(recipe, label, base)


def _bytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def explain_out_of_memory(
    recipe: Recipe, stage: Stage, models: TrainingModels, world_size: int
) -> Iterator[None]:
    """Replace torch's error by one that says which option saves how much.

    Raises:
        TrainingError: the GPU's memory is exhausted within this context.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        bf16 = models.precision == "bf16"
        options = memory_options(recipe, stage, *models.costs, bf16=bf16, world_size=world_size)
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
    others = trained_elsewhere(recipe, stage)

    def needed(changed: Stage, count: int, shards: int) -> float:
        chosen = students[:count]
        return stage_memory(teacher, chosen, changed, others, bf16=bf16, on_gpu=True, shards=shards)

    now = needed(stage, len(students), shards)

    def saved(changed: Stage = stage, count: int = len(students), shards: int = shards) -> float:
        return now - needed(changed, count, shards)

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
    parts = 2 * stage.sequence_parallel
    if stage.splits_sequences and stage.packing == "concat" and shards == 1 and stage.seq_len % parts == 0:
        changed = stage.model_copy(update={"sequence_parallel": parts})
        options.append((f"{key}.sequence_parallel={parts}, with a multiple of {parts} GPUs", saved(changed)))
    if isinstance(stage.optimizer, AdamW) and stage.optimizer.state_bits == 32:
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

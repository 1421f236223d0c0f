"""Cost estimate of a recipe from model configurations alone, without loading weights.

FLOPs count matrix products (two per multiply-add). Memory and time are estimates under the stated
assumptions.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.distill.model_shape import ModelShape
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.stage import Stage
from evalsuite.distill.training.builders import layer_mixers, override_mixers, resolve_layer_selection
from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict_yaml import read_yaml

MODEL_SHAPES = Path(__file__).with_name("model_shapes.yaml")
CPU_FLOPS_PER_CORE = 3e10
GPU_FLOPS = {"small": 790e12 * 0.25, "large": 790e12 * 0.40}
"""Dense bf16 rate of an H200 times the MFU reached by models below and above 1B parameters."""


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

    def __str__(self) -> str:
        lines = [
            f"{self.recipe}: {', '.join(self.labels)} from {self.num_params / 1e6:,.1f}M parameters, "
            f"on {self.device}",
            f"{'stage':<16} {'objective':<17} {'tokens':>15} {'steps':>9} "
            f"{'FLOPs':>9} {'memory':>9} {'time':>9}",
        ]
        lines += [
            f"{stage.name:<16} {stage.objective:<17} {stage.tokens:>15,} {stage.steps:>9,} "
            f"{stage.flops:>9.1e} {_bytes(stage.memory):>9} {_time(stage.seconds):>9}"
            for stage in self.stages
        ]
        lines.append(
            f"{'total':<16} {'':<17} {self.tokens:>15,} {sum(stage.steps for stage in self.stages):>9,} "
            f"{self.flops:>9.1e} {_bytes(self.memory):>9} {_time(self.seconds):>9}"
        )
        lines.append(
            "FLOPs are counted; memory and time are estimates (25 % MFU on an H200 below 1B parameters, "
            "40 % above; 30 GFLOP/s per CPU core)."
        )
        return "\n".join(lines)


def dry_run(recipe: Recipe, *, mixers: Sequence[str] | None = None, device: str | None = None) -> Estimate:
    """Estimate tokens, FLOPs, memory and time of a recipe from model configurations alone.

    Raises:
        ConfigError: the teacher's configuration is not available offline.
    """
    recipe = resolve_layer_selection(override_mixers(recipe, mixers))
    shape = recipe_shape(recipe)
    on_gpu = _on_gpu(device)
    precision = "bf16" if recipe.precision == "bf16" or (recipe.precision == "auto" and on_gpu) else "fp32"
    num_softmax = shape.num_hidden_layers
    if recipe.architecture is None:
        num_softmax = layer_mixers(recipe, recipe.student.mixers[0], num_softmax).count("softmax")
    rate = GPU_FLOPS["small" if shape.num_params < 1e9 else "large"]
    if not on_gpu:
        rate = CPU_FLOPS_PER_CORE * (os.cpu_count() or 1)
    stages = []
    for stage in recipe.stages:
        tokens = stage.steps * stage.tokens_per_step
        flops = tokens * stage.flops_per_token(shape, num_softmax, len(recipe.labels))
        memory = stage_memory(shape, stage, num_softmax, len(recipe.labels), bf16=precision == "bf16")
        stages.append(
            StageEstimate(stage.name, stage.objective, tokens, stage.steps, flops, memory, flops / rate)
        )
    device_name = "one H200-class GPU" if on_gpu else f"{os.cpu_count()} CPU cores"
    return Estimate(recipe.name, tuple(recipe.labels), shape.num_params, device_name, tuple(stages))


@dataclass(frozen=True, kw_only=True)
class StudentParams:
    """Numbers of parameters of one student."""

    mixers: int
    softmax: int
    mlps: int
    block_mlps: int
    """Of the layers whose mixers replace softmax attention."""
    embeddings: int

    @classmethod
    def of(cls, shape: ModelShape, num_softmax: int) -> "StudentParams":
        """Those of a student with `num_softmax` layers of softmax attention."""
        linear = shape.num_hidden_layers - num_softmax
        return cls(
            mixers=linear * shape.mixer_params,
            softmax=num_softmax * shape.attention_params,
            mlps=shape.num_hidden_layers * shape.mlp_params,
            block_mlps=linear * shape.mlp_params,
            embeddings=shape.embedding_params,
        )

    @property
    def all(self) -> int:
        """Parameters of the student."""
        return self.mixers + self.softmax + self.mlps + self.embeddings

    def trained(self, trainable_set: str) -> int:
        """Parameters in a set (see `parameter_groups.TRAINABLE_SETS`)."""
        return {
            "mixer_qk": self.mixers * 2 // 5,
            "mixer": self.mixers,
            "block": self.mixers + self.block_mlps,
            "no_softmax": self.mixers + self.mlps,
            "no_mlp": self.all - self.mlps,
            "no_softmax_no_mlp": self.mixers,
            "no_embeddings": self.all - self.embeddings,
            "all": self.all,
        }[trainable_set]


def stage_memory(
    shape: ModelShape, stage: Stage, num_softmax: int, students: int, *, bf16: bool, shards: int = 1
) -> float:
    """Bytes on one GPU: weights, gradients, optimizer states, teacher, activations and logits.

    Args:
        shards: GPUs over which teacher and students are sharded.
    """
    params, width = StudentParams.of(shape, num_softmax), 2 if bf16 else 4
    trained = params.trained(stage.trainable_set)
    # Frozen weights that are the teacher's are held once; with shards, each model has its own.
    frozen_teachers = params.all - trained - max(0, params.mixers - trained)
    held = params.all - (frozen_teachers if stage.needs_teacher and shards == 1 else 0)
    states = 2 if stage.optimizer.state_bits == 8 else 8
    if shards == 1 and bf16:
        weights = width * held + 4 * trained
    else:
        # In fp32, weights are the master weights; FSDP casts shards as it gathers them.
        weights = 4 * trained + width * (held - trained)
    student = weights + (4 + states) * trained
    teacher = width * shape.num_params if stage.needs_teacher else 0
    total = (students * student + teacher) / shards
    if shards > 1:
        block = shape.mlp_params + shape.mixer_params
        models = students + bool(stage.needs_teacher)
        # Gathered: what is outside of blocks, and two blocks. Reduced in fp32: the gradients of one of these.
        total += width * (models * shape.embedding_params + 2 * block) + 4 * max(
            shape.embedding_params, block
        )
    return total + stage.num_concurrent(students) * stage.activation_bytes(shape, width)


def recipe_shape(recipe: Recipe) -> ModelShape:
    """The shape of a recipe's teacher (or of its architecture), without loading weights."""
    architecture = recipe.architecture
    if architecture is not None:
        from evalsuite.distill.training.builders import architecture_shape, load_architecture_tokenizer

        tokenizer = load_architecture_tokenizer(architecture)
        return architecture_shape(architecture, len(tokenizer))
    student = recipe.student
    teacher = recipe.teacher or student.shape_from or next(iter(student.initial_checkpoints.values()))
    known = read_yaml(MODEL_SHAPES)
    model, _, _ = teacher.partition("@")
    if model in known:
        return ModelShape(**known[model])
    return _config_shape(teacher, known)


def _config_shape(teacher: str, known: dict[str, Any]) -> ModelShape:
    from evalsuite.foundation import EvalsuiteError
    from evalsuite.models import describe_checkpoint

    try:
        return ModelShape.from_config(describe_checkpoint(teacher).config)
    except EvalsuiteError as error:
        raise ConfigError(
            f"the shape of '{teacher}' is not available{nearest(teacher, known)} ({error})"
        ) from None


def _on_gpu(device: str | None) -> bool:
    if device is not None:
        return device.startswith("cuda")
    import torch

    return torch.cuda.is_available()


def _bytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

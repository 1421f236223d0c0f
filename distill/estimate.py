"""What a recipe would cost, counted from configurations alone: nothing is loaded and nothing starts.

FLOPs are counts of the matrix products (two per multiply-add); memory and time are estimates, and say
what they assume.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evalsuite.distill.recipe import Recipe, Stage
from evalsuite.distill.setup import with_mixers, with_selection
from evalsuite.foundation import ConfigError, nearest

SHAPES = Path(__file__).with_name("shapes.yaml")
CHUNK = 64
"""Tokens that a recurrence handles at a time; within a chunk its cost is quadratic."""
LOGITS_BYTES = 4 * 2**29
"""The chunked loss holds about four fp32 tensors, each at most of its chunk's size."""
CPU_FLOPS_PER_CORE = 3e10
GPU_FLOPS = {"small": 790e12 * 0.25, "large": 790e12 * 0.40}
"""An H200's dense bf16 rate times the share of it that models below and above 1B parameters reach."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama-style decoder."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_embeddings: bool = True

    @property
    def attention(self) -> int:
        """Weights of one layer's softmax attention."""
        return self.hidden_size * self.head_dim * 2 * (self.heads + self.kv_heads)

    @property
    def mixer(self) -> int:
        """Weights of one recurrent layer with a key and value head per query head and an output gate."""
        return 5 * self.hidden_size * self.head_dim * self.heads

    @property
    def mlp(self) -> int:
        """Weights of one layer's MLP."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def head(self) -> int:
        """Weights of the language-model head."""
        return self.hidden_size * self.vocab_size

    @property
    def embeddings(self) -> int:
        """Weights of embeddings and head together."""
        return self.head * (1 if self.tie_embeddings else 2)

    @property
    def parameters(self) -> int:
        """Weights of the Transformer, norms left out."""
        return self.layers * (self.attention + self.mlp) + self.embeddings


@dataclass(frozen=True)
class StageEstimate:
    """One stage, all students together."""

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
    """The cost of a recipe; print it."""

    recipe: str
    labels: tuple[str, ...]
    parameters: int
    device: str
    stages: tuple[StageEstimate, ...]

    @property
    def tokens(self) -> int:
        """Tokens over all stages; all students share them."""
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
        """Bytes per GPU in the stage that needs most."""
        return max(stage.memory for stage in self.stages)

    def __str__(self) -> str:
        lines = [
            f"{self.recipe}: {', '.join(self.labels)} from {self.parameters / 1e6:,.1f}M parameters, "
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
            f"{'all':<16} {'':<17} {self.tokens:>15,} {sum(stage.steps for stage in self.stages):>9,} "
            f"{self.flops:>9.1e} {_bytes(self.memory):>9} {_time(self.seconds):>9}"
        )
        lines.append(
            "FLOPs are counted; memory and time are estimates (25 % of an H200's rate below 1B parameters, "
            "40 % above; 30 GFLOP/s a CPU core)."
        )
        return "\n".join(lines)


def dry_run(recipe: Recipe, *, mixers: Sequence[str] | None = None, device: str | None = None) -> Estimate:
    """Estimate tokens, FLOPs, memory and time of a recipe, from configurations alone.

    Raises:
        ConfigError: the teacher's configuration cannot be found without a network.
    """
    recipe = with_selection(with_mixers(recipe, mixers))
    shape = recipe_shape(recipe)
    gpu = _on_gpu(device)
    precision = "bf16" if recipe.precision == "bf16" or (recipe.precision == "auto" and gpu) else "fp32"
    softmax = recipe.student.softmax_layers
    kept = len(softmax) if isinstance(softmax, list) else 0
    if recipe.architecture is not None:
        kept = shape.layers
    rate = GPU_FLOPS["small" if shape.parameters < 1e9 else "large"]
    if not gpu:
        rate = CPU_FLOPS_PER_CORE * (os.cpu_count() or 1)
    stages = []
    for stage in recipe.stages:
        tokens = stage.steps * stage.batch * stage.length
        flops = tokens * flops_per_token(shape, stage, kept, len(recipe.labels))
        memory = stage_memory(shape, stage, kept, len(recipe.labels), bf16=precision == "bf16")
        stages.append(
            StageEstimate(stage.name, stage.objective, tokens, stage.steps, flops, memory, flops / rate)
        )
    device_name = "one H200-class GPU" if gpu else f"{os.cpu_count()} CPU cores"
    return Estimate(recipe.name, tuple(recipe.labels), shape.parameters, device_name, tuple(stages))


def flops_per_token(shape: Shape, stage: Stage, softmax_layers: int, students: int) -> float:
    """FLOPs per token of a stage: one teacher forward, and every student's forward and backward."""
    inner = shape.heads * shape.head_dim
    scores = 2 * stage.length * inner
    recurrence = 4 * CHUNK * inner + 4 * inner * shape.head_dim
    teacher_body = shape.layers * (2 * (shape.attention + shape.mlp) + scores)
    linear = shape.layers - softmax_layers
    mixers = linear * (2 * shape.mixer + recurrence)
    if stage.aligns:
        # A frozen MLP behind the mixer costs a forward pass and the gradient of its input.
        block = stage.distance.target == "block" or (
            stage.distance.target is None and stage.objective == "hidden_state"
        )
        return teacher_body + students * (3 * mixers + (4 * linear * shape.mlp if block else 0))
    body = mixers + softmax_layers * (2 * shape.attention + scores) + shape.layers * 2 * shape.mlp
    student = 3 * (body + 2 * shape.head)
    teaches = stage.objective == "kd" and stage.loss.kl > 0
    return students * student + (teacher_body + 2 * shape.head if teaches else 0)


def stage_memory(shape: Shape, stage: Stage, softmax_layers: int, students: int, *, bf16: bool) -> float:
    """Bytes on one GPU: weights, gradients and moments, the teacher, activations, a chunk of logits."""
    linear = shape.layers - softmax_layers
    mixers = linear * shape.mixer
    student = mixers + softmax_layers * shape.attention + shape.layers * shape.mlp + shape.embeddings
    trained = mixers if stage.trains in ("mixer", "mixer_qk") else student
    states = students * (4 * student + 12 * trained)
    teacher = 0 if stage.objective == "sft" else shape.parameters * (2 if bf16 else 4)
    tokens = (stage.micro_batch or stage.batch) * stage.length
    width = 2 if bf16 else 4
    # Kept for the backward pass, per layer and token: about 16 vectors around the mixer, 2 of the MLP
    # (28.6 GB in all were measured for 32,768 tokens of SmolLM2-135M in bf16).
    layer = tokens * width * (16 * shape.hidden_size + 2 * shape.intermediate_size)
    activations = layer * (1 if stage.aligns else shape.layers)
    logits = 0 if stage.aligns else min(LOGITS_BYTES, 16 * tokens * shape.vocab_size)
    return states + teacher + activations + logits


def recipe_shape(recipe: Recipe) -> Shape:
    """The sizes of a recipe's teacher (or of its architecture), without loading weights."""
    made = recipe.architecture
    if made is not None:
        from evalsuite.distill.setup import architecture_tokenizer

        return Shape(
            hidden_size=made.hidden_size,
            layers=made.layers,
            heads=made.heads,
            kv_heads=made.kv_heads,
            head_dim=made.head_dim,
            intermediate_size=made.intermediate_size,
            vocab_size=len(architecture_tokenizer(made)),
            tie_embeddings=made.tie_embeddings,
        )
    student = recipe.student
    teacher = recipe.teacher or student.sizes_of or next(iter(student.checkpoints.values()))
    known = yaml.safe_load(SHAPES.read_text())
    if teacher in known:
        return Shape(**known[teacher])
    return _config_shape(teacher, known)


def _config_shape(teacher: str, known: dict[str, Any]) -> Shape:
    from evalsuite.foundation import EvalsuiteError
    from evalsuite.models import describe_checkpoint

    try:
        config: Any = describe_checkpoint(teacher).config
    except EvalsuiteError as error:
        raise ConfigError(
            f"the sizes of '{teacher}' are not known here{nearest(teacher, known)} ({error})"
        ) from None
    config = getattr(config, "base", config)
    return Shape(
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        tie_embeddings=config.tie_word_embeddings,
    )


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

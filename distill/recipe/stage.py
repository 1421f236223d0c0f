"""Training stages, and the registry of objectives.

An objective is one subclass of `Stage`: it declares the settings that apply to it, what it logs and supports,
what it costs, and computes its losses. Its module imports torch inside functions only, since recipes are
also listed and checked without torch.

    @OBJECTIVES.register("kd")
    class KnowledgeDistillation(EndToEndStage):
        objective: Literal["kd"]
        loss: LossConfig = LossConfig()
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from evalsuite.distill.optim.optimizers import AdamW, Optimizer
from evalsuite.distill.optim.schedules import Schedule, WarmupStableDecay
from evalsuite.distill.recipe.config import Tokens, TokenWeights
from evalsuite.distill.trainable import TrainableName
from evalsuite.foundation.registry import Registry, subclass_of
from evalsuite.foundation.strict import StrictUnion

if TYPE_CHECKING:
    import torch

    from evalsuite.distill.types import CausalLM, StepLosses
    from evalsuite.models.decoder.cost import ModelCost
    from evalsuite.models.ops.recurrence import RecurrenceInputs


class Stage(StrictUnion):
    """One training stage: its objective, trainable parameters, data, schedule and token budget.

    A mapping that is validated as a `Stage` becomes an instance of the class that its `objective` names.
    """

    tag: ClassVar[str] = "objective"
    columns: ClassVar[tuple[str, ...]] = ("loss",)
    """Logged per step and student; the first one is minimized."""
    needs_teacher: ClassVar[bool] = True
    """False if students can be trained without a teacher."""
    is_layerwise: ClassVar[bool] = False
    """True if each layer is trained by itself on the teacher's activations, without gradients from later
    layers; gradients are then clipped per layer."""
    teacher_attention: ClassVar[Literal["sdpa", "eager"]] = "sdpa"
    """Attention implementation of the teacher; `eager` gives access to its attention matrices."""
    default_trainable: ClassVar[str] = "all"
    """The set of trainable parameters if a recipe names none."""
    splits_sequences: ClassVar[bool] = False
    """True if losses are sums over tokens and models are read by `read_out` or layer by layer, so that
    processes can share sequences."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the stage, unique in the recipe; `--set stage.NAME.key=value` addresses it."""
    objective: str
    """What the stage minimizes; a name from `evalsuite show objectives`."""
    trainable: TrainableName | None = None
    """Default: `mixer` for layerwise objectives, `all` otherwise. See `trainable.TRAINABLE_SETS`."""
    data: str | dict[str, float]
    """Name of a source, or a mixture: source → weight."""
    restart_data: bool = False
    """Read the sources from their start, instead of continuing where the earlier stages stopped."""
    tokens: Tokens
    """Token budget, such as 500000, 80M or 1.5B; whole batches within it are trained."""
    seq_len: int = Field(gt=1)
    """Tokens per sequence."""
    batch_size: int = Field(gt=0)
    """Sequences per optimizer step, over all GPUs."""
    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass on one GPU; default: the whole batch."""
    sequence_parallel: int = Field(default=1, gt=0)
    """GPUs that share a sequence, each with `seq_len / sequence_parallel` of its tokens; losses and gradients
    do not change."""
    lr: float = Field(gt=0)
    """Peak learning rate."""
    schedule: SerializeAsAny[Schedule] = WarmupStableDecay()
    optimizer: SerializeAsAny[Optimizer] = AdamW()
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradient clipping (per layer for layerwise objectives); null: no clipping."""
    packing: Literal["concat", "documents"] = "concat"
    """concat: one token stream cut into sequences; documents: whole documents, isolated from each other."""
    loss_mask: Literal["full", "completion"] = "full"
    """Tokens in the loss: all of them, or completions (assistant turns) only."""
    token_weights: TokenWeights | None = None
    """Weights of loss tokens that repeat earlier text, in the losses of every objective; default: all 1."""

    @abstractmethod
    def flops_per_token(self, teacher: "ModelCost | None", students: "Sequence[ModelCost]") -> float:
        """FLOPs per token: the teacher's forward pass, and forward and backward passes of every student."""

    @abstractmethod
    def activation_bytes(self, student: "ModelCost", width: int) -> float:
        """Bytes of a student's activations and logits of one micro-batch; `width`: bytes of an activation."""

    def shared_logits_bytes(self, students: int, vocab_size: int, width: int) -> int:
        """Bytes of the teacher's logits of a micro-batch where several students share them; 0 where each
        student computes them in chunks, or none does. `width`: bytes of a logit."""
        return 0

    def num_concurrent(self, students: int) -> int:
        """How many of the students hold their activations at the same time in a captured graph."""
        return 1

    @abstractmethod
    def start(
        self, teacher: "CausalLM | None", students: "Sequence[CausalLM]", device: "torch.device"
    ) -> "StepLosses":
        """Prepare the losses of a stage's steps.

        Args:
            teacher: None only if `loads_teacher` is False.
        """

    @property
    def store(self) -> str | None:
        """Folder with the teacher's output on this stage's data; None: the teacher runs."""
        return None

    @property
    def num_rollouts(self) -> int:
        """Sequences of each step that students write themselves, from prompts of the data."""
        return 0

    @property
    def loads_teacher(self) -> bool:
        """Whether training needs the teacher's weights."""
        return self.needs_teacher and self.store is None

    def check_students(self, students: "Mapping[str, CausalLM]") -> None:
        """Check that this stage can train the students. Raises ConfigError before training starts."""

    def lr_of(self, *, in_mixer: bool) -> float:
        """Peak learning rate of a parameter inside or outside the mixers."""
        return self.lr

    @property
    def recomputes_blocks(self) -> bool:
        """Whether activations within blocks are computed again in the backward pass."""
        return False

    @property
    def recurrence(self) -> "Callable[[RecurrenceInputs], tuple[torch.Tensor, torch.Tensor]]":
        """What computes the recurrences of students in this stage."""
        from evalsuite.models.ops.recurrence import compute_recurrence

        return compute_recurrence

    @property
    def trainable_set(self) -> str:
        """Name of the set of trainable parameters."""
        return self.trainable or self.default_trainable

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.batch_size * self.seq_len

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one forward pass on one GPU."""
        return (self.micro_batch_size or self.batch_size) * self.seq_len // self.sequence_parallel

    @property
    def steps(self) -> int:
        """Optimizer steps within the token budget."""
        return self.tokens // self.tokens_per_step

    @property
    def mixture(self) -> dict[str, float]:
        """Source → share of the tokens, summing to 1."""
        weights = {self.data: 1.0} if isinstance(self.data, str) else self.data
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    @classmethod
    def registry(cls) -> Registry[Any]:
        """The objectives."""
        return OBJECTIVES

    @model_validator(mode="after")
    def _consistent(self) -> "Stage":
        if self.steps == 0:
            raise ValueError(
                f"the budget of {self.tokens:,} tokens is smaller than one batch "
                f"of {self.batch_size} × {self.seq_len}"
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"'batch_size' ({self.batch_size}) is not a multiple of 'micro_batch_size' "
                f"({self.micro_batch_size})"
            )
        if self.sequence_parallel > 1:
            self._check_parts()
        if isinstance(self.data, dict) and (not self.data or min(self.data.values()) <= 0):
            raise ValueError("the weights of a mixture must be positive")
        return self

    def _check_parts(self) -> None:
        """Raise ValueError if sequences cannot be shared."""
        where = f"'sequence_parallel' ({self.sequence_parallel})"
        if not self.splits_sequences:
            raise ValueError(f"{where}: objective {self.objective} needs whole sequences; remove it")
        if self.packing != "concat":
            raise ValueError(f"{where}: packed documents cannot be shared; set packing: concat, or remove it")
        if self.seq_len % self.sequence_parallel:
            raise ValueError(f"'seq_len' ({self.seq_len}) is not a multiple of {where}")


OBJECTIVES: Registry[type[Stage]] = Registry(
    "objective", group="evalsuite.objectives", validate=subclass_of(Stage)
)
"""Name → the class of its stages."""


def stage_settings(used: Collection[str]) -> set[str]:
    """Settings that stages can have: those of evalsuite's own objectives, and of the `used` ones."""
    names = [name for name in OBJECTIVES if name in used or OBJECTIVES.origin(name) == "evalsuite"]
    kinds = Stage.usable_members(names).values()
    return set(Stage.model_fields).union(*(kind.model_fields for kind in kinds))

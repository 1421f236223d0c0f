"""Objectives on the model's output: knowledge distillation and next-token cross-entropy."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from evalsuite.distill.recipe.stage import OBJECTIVES, Stage
from evalsuite.foundation.strict import Strict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evalsuite.distill.objectives.kl_and_cross_entropy import DistillLossConfig
    from evalsuite.distill.objectives.output_losses import LossTokens
    from evalsuite.distill.types import CausalLM, StepLosses
    from evalsuite.models.decoder.cost import ModelCost

LOGITS_BYTES = 4 * 2**29
"""The fused loss holds about four fp32 tensors of at most one chunk of logits each."""
CONCURRENT_STUDENTS = 4
"""Students of one teacher that run at a time on a GPU, each with its own activations."""
CONCURRENT_TOKENS = 8192
"""In longer micro-batches students run one after another, since each of them fills the GPU."""


class EndToEndStage(Stage):
    """A stage whose loss is a function of the last hidden states; gradients reach the whole student."""

    backbone_lr: float | None = Field(default=None, gt=0)
    """Learning rate of all parameters outside the mixers; default: `lr`."""
    activation_checkpointing: Literal["none", "block"] = "none"
    """block: store the input of each block only; its other activations are computed again in the backward
    pass. Losses and gradients do not change."""

    @property
    @abstractmethod
    def runs_teacher(self) -> bool:
        """Whether the loss depends on the teacher's output."""

    @abstractmethod
    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        """Sums over the loss tokens of one micro-batch, one per column; the first one is differentiated."""

    @property
    def recomputes_blocks(self) -> bool:
        return self.activation_checkpointing == "block"

    def lr_of(self, *, in_mixer: bool) -> float:
        """Peak learning rate of a parameter inside or outside the mixers."""
        return self.lr if in_mixer or self.backbone_lr is None else self.backbone_lr

    def flops_per_token(self, teacher: "ModelCost | None", students: "Sequence[ModelCost]") -> float:
        forward = sum(student.forward_flops(self.seq_len) for student in students)
        targets = teacher.forward_flops(self.seq_len) if teacher is not None and self.runs_teacher else 0
        return 3 * forward + targets

    def activation_bytes(self, student: "ModelCost", width: int) -> float:
        tokens = self.micro_batch_tokens
        logits = min(LOGITS_BYTES, 16 * tokens * student.vocab_size)
        layer = tokens * student.layer_activation_bytes(width)
        if self.recomputes_blocks:
            inputs = student.num_hidden_layers * tokens * student.hidden_size * width
            return inputs + layer + logits
        return student.num_hidden_layers * layer + logits

    def num_concurrent(self, students: int) -> int:
        """Several in short micro-batches."""
        return min(students, CONCURRENT_STUDENTS) if self.micro_batch_tokens <= CONCURRENT_TOKENS else 1

    def start(
        self, teacher: "CausalLM | None", students: "Sequence[CausalLM]", device: "torch.device"
    ) -> "StepLosses":
        from evalsuite.distill.objectives.output_losses import OutputLosses

        return OutputLosses(self, teacher, students, device)


class LossConfig(Strict):
    """The `kd` objective: ce · CE + kl · KL, each a mean over the loss tokens."""

    ce: float = Field(default=0.0, ge=0)
    ce_tokens: Literal["all", "teacher_right"] = "all"
    """Tokens with a cross-entropy. teacher_right: those that are the teacher's most likely token, so that
    text where the teacher is wrong is not learned from. The mean is over all loss tokens either way."""
    kl: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature of both distributions in the KL; its gradient is scaled by temperature²."""
    direction: Literal["forward", "reverse"] = "forward"
    """forward: KL(teacher ‖ student); reverse: KL(student ‖ teacher)."""
    top_k: int | None = Field(default=None, ge=1)
    """Restrict the KL to the teacher's K most likely tokens; default: the whole vocabulary."""
    tail: Literal["renormalize", "bucket"] = "renormalize"
    """With top_k: drop the other tokens and renormalize, or treat them as one additional outcome."""

    @model_validator(mode="after")
    def _nonzero(self) -> "LossConfig":
        if self.ce == 0 and self.kl == 0:
            raise ValueError("'ce' and 'kl' are both 0, so nothing would be learned")
        if self.ce == 0 and self.ce_tokens != "all":
            raise ValueError(f"'ce_tokens: {self.ce_tokens}' needs a 'ce' above 0")
        return self


@OBJECTIVES.register("kd")
class KnowledgeDistillation(EndToEndStage):
    """Weighted sum of KL(teacher ‖ student) and cross-entropy per token (arXiv 2504.14366 Eq. 6)."""

    columns: ClassVar[tuple[str, ...]] = ("loss", "ce", "kl")

    objective: Literal["kd"]
    loss: LossConfig = LossConfig()

    @property
    def runs_teacher(self) -> bool:
        """Whether the KL has a weight, or the teacher chooses the tokens of the cross-entropy."""
        return self.loss.kl > 0 or self.loss.ce_tokens != "all"

    @property
    def fused_loss(self) -> "DistillLossConfig":
        """The loss as the fused operation takes it."""
        from evalsuite.distill.objectives.kl_and_cross_entropy import DistillLossConfig

        loss = self.loss
        return DistillLossConfig(
            ce=loss.ce,
            ce_tokens=loss.ce_tokens,
            kl=loss.kl,
            temperature=loss.temperature,
            direction=loss.direction,
            top_k=loss.top_k,
            tail=loss.tail,
        )

    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        """Loss, CE and KL."""
        return tokens.distillation(self.fused_loss)


@OBJECTIVES.register("sft")
class SupervisedFineTuning(EndToEndStage):
    """Next-token cross-entropy, without a teacher."""

    columns: ClassVar[tuple[str, ...]] = ("loss", "ce")
    needs_teacher: ClassVar[bool] = False

    objective: Literal["sft"]

    @property
    def runs_teacher(self) -> bool:
        """False: there may be none."""
        return False

    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        """Loss and CE, which are the same."""
        from evalsuite.distill.objectives.kl_and_cross_entropy import DistillLossConfig

        return tokens.distillation(DistillLossConfig(ce=1.0, kl=0.0))[:2]

"""Objectives on the model's output: knowledge distillation and next-token cross-entropy."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from evalsuite.distill.recipe.config import LossConfig
from evalsuite.distill.recipe.stage import OBJECTIVES, Stage
from evalsuite.distill.trainable import trainable_names
from evalsuite.foundation import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evalsuite.distill.objectives.output_losses import LossTokens
    from evalsuite.distill.types import CausalLM, StepLosses
    from evalsuite.models.decoder.cost import ModelCost

LOGITS_BYTES = 4 * 2**29
"""At most: the fused loss holds about four fp32 tensors of one chunk of logits each. Its kernel overwrites
bf16 logits of student and teacher, whose chunks have up to four times as many tokens."""
CONCURRENT_STUDENTS = 4
"""Students of one teacher that run at a time on a GPU, each with its own activations."""
ROLLOUT_SLOTS = 128
"""At most: rollouts that a student writes at a time."""
CONCURRENT_TOKENS = 8192
"""In longer micro-batches students run one after another, since each of them fills the GPU."""


class EndToEndStage(Stage):
    """A stage whose loss is a function of the last hidden states; gradients reach the whole student."""

    splits_sequences: ClassVar[bool] = True

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
    def loss_has_kernel(self) -> bool:
        """See `LossConfig.has_kernel`."""
        return True

    @property
    def recomputes_blocks(self) -> bool:
        return self.activation_checkpointing == "block"

    def lr_of(self, *, in_mixer: bool) -> float:
        """Peak learning rate of a parameter inside or outside the mixers."""
        return self.lr if in_mixer or self.backbone_lr is None else self.backbone_lr

    def flops_per_token(self, teacher: "ModelCost | None", students: "Sequence[ModelCost]") -> float:
        forward = sum(student.forward_flops(self.seq_len) for student in students)
        runs = teacher is not None and self.runs_teacher and self.store is None
        return 3 * forward + (teacher.forward_flops(self.seq_len) if teacher is not None and runs else 0)

    def activation_bytes(self, student: "ModelCost", width: int) -> float:
        tokens = self.micro_batch_tokens
        logit = 2 * width if self.loss_has_kernel and width == 2 else 16
        logits = min(LOGITS_BYTES, logit * tokens * student.config.vocab_size)
        head = student.model.get_output_embeddings().weight
        if self._trains(student.model, head):
            # The fp32 sum of its gradient over chunks, the product of one, and the sum in the weight's dtype.
            logits += (4 + 2 * width) * head.numel()
        layers = student.layer_activations
        held = sum(layers)
        if self.recomputes_blocks:
            held = len(layers) * student.config.hidden_size + max(layers)
        return width * tokens * held + logits

    def shared_logits_bytes(self, students: int, vocab_size: int, width: int) -> int:
        found = width * self.micro_batch_tokens * vocab_size
        shares = self.runs_teacher and self.store is None and students > 1
        return found if shares and found <= LOGITS_BYTES else 0

    def _shares_logits(self, teacher: "CausalLM | None", students: int) -> bool:
        from evalsuite.models.decoder.head import LanguageModelHead

        if teacher is None:
            return False
        weight = LanguageModelHead.of(teacher).weight
        return self.shared_logits_bytes(students, weight.shape[0], weight.element_size()) > 0

    def check_students(self, students: "Mapping[str, CausalLM]") -> None:
        """The fused loss has a gradient for the weight of the head alone."""
        from evalsuite.models.decoder.head import LanguageModelHead

        for label, student in students.items():
            if self._trains(student, LanguageModelHead.of(student).bias):
                raise ConfigError(
                    f"stage '{self.name}': the head of '{label}' has a bias, which would not be trained with "
                    f"trainable: {self.trainable_set}; set trainable to block or mixer"
                )

    def _trains(self, student: "CausalLM", parameter: "Tensor | None") -> bool:
        parameters = dict(student.named_parameters())
        return any(parameters[name] is parameter for name in trainable_names(student, self.trainable_set))

    def num_concurrent(self, students: int) -> int:
        """Several in short micro-batches."""
        return min(students, CONCURRENT_STUDENTS) if self.micro_batch_tokens <= CONCURRENT_TOKENS else 1

    def start(
        self, teacher: "CausalLM | None", students: "Sequence[CausalLM]", device: "torch.device"
    ) -> "StepLosses":
        from evalsuite.distill.objectives.output_losses import OutputLosses

        teacher = teacher if self.runs_teacher and self.store is None else None
        concurrent = self.num_concurrent(len(students))
        shares = self._shares_logits(teacher, len(students))
        return OutputLosses(
            self.loss_columns, self.columns, teacher, students, concurrent, device, shares_logits=shares
        )


@OBJECTIVES.register("kd")
class KnowledgeDistillation(EndToEndStage):
    """Weighted sum of KL(teacher ‖ student) and cross-entropy per token (arXiv 2504.14366 Eq. 6)."""

    columns: ClassVar[tuple[str, ...]] = ("loss", "ce", "kl")

    objective: Literal["kd"]
    loss: LossConfig = LossConfig()
    teacher_store: str | None = None
    """Folder with the teacher's `loss.top_k` most likely tokens after each of this stage's, which `evalsuite
    distill RECIPE --make-stores` writes; `$NAME` expands environment variables. Training reads it and does
    not run the teacher."""

    @property
    def store(self) -> str | None:
        return self.teacher_store

    @property
    def loss_has_kernel(self) -> bool:
        return self.loss.has_kernel

    @property
    def stored_k(self) -> int:
        """Tokens that the loss reads of a store: those of the KL, or the most likely one."""
        return (self.loss.top_k or 0) if self.loss.kl else 1

    @model_validator(mode="after")
    def _a_store_has_the_targets(self) -> "KnowledgeDistillation":
        if self.teacher_store is None:
            return self
        if not self.runs_teacher:
            raise ValueError("'teacher_store': this loss does not depend on the teacher; remove the store")
        if self.stored_k == 0:
            raise ValueError(
                "'teacher_store' has the teacher's most likely tokens only, and the KL of this stage is over "
                "the whole vocabulary; set loss: {top_k: 64, tail: bucket}, or remove the store"
            )
        return self

    def activation_bytes(self, student: "ModelCost", width: int) -> float:
        stored = 0 if self.store is None else self.micro_batch_tokens * (12 * self.stored_k + 4)
        return super().activation_bytes(student, width) + stored

    @property
    def runs_teacher(self) -> bool:
        """Whether the KL has a weight, or the teacher chooses the tokens of the cross-entropy."""
        return self.loss.kl > 0 or self.loss.ce_tokens != "all"

    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        """Loss, CE and KL."""
        return tokens.distillation(self.loss)


@OBJECTIVES.register("on_policy")
class OnPolicyDistillation(EndToEndStage):
    """Divergence from the teacher on what the student itself writes, and on data (GKD, arXiv 2306.13649).

    A student continues the prompts of some of the data's sequences in place of their completions. Teacher and
    student then read prompt and continuation, and the divergence over the continuation's tokens is minimized:
    gradients flow through this forward pass, and not through the sampling (no policy gradient).
    """

    columns: ClassVar[tuple[str, ...]] = (
        "loss", "kl", "rollout_kl", "rollout_length", "rollouts_ended", "rollouts_truncated",
    )  # fmt: skip
    """The divergence a token of the data and of rollouts; of rollouts the mean length in tokens, the share
    that ended by itself, and how many reached their limit."""
    splits_sequences: ClassVar[bool] = False

    objective: Literal["on_policy"]
    loss: LossConfig = LossConfig(direction="jsd")
    """Divergence of both; no cross-entropy."""
    rollout_share: float = Field(default=0.5, ge=0, le=1)
    """Share of a batch's sequences that students write themselves, rounded to whole sequences, and weight of
    their mean in the loss; the rest is data, to which token_weights apply. Above 0, documents longer than a
    sequence are left out."""
    rollout_temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: int = Field(default=128, ge=1)
    """Longest rollout. A sequence holds the first rollouts that fit, one at least; others are dropped."""
    rollout_every: int = Field(default=1, ge=1)
    """Steps that train on the same rollouts, after which students write new ones."""
    packing: Literal["concat", "documents"] = "documents"
    loss_mask: Literal["full", "completion"] = "completion"

    @property
    def num_rollouts(self) -> int:
        return round(self.rollout_share * self.batch_size)

    @property
    def rollout_slots(self) -> int:
        """How many rollouts a student writes at a time: all that a step can have, at most `ROLLOUT_SLOTS`."""
        return min(ROLLOUT_SLOTS, self.num_rollouts * self.seq_len)

    @property
    def runs_teacher(self) -> bool:
        """True."""
        return True

    @property
    def loss_has_kernel(self) -> bool:
        return self.loss.has_kernel

    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        """Loss and divergence."""
        loss, _, kl = tokens.distillation(self.loss)
        return loss, kl

    def flops_per_token(self, teacher: "ModelCost | None", students: "Sequence[ModelCost]") -> float:
        """Generation reads each token of a rollout once, and the teacher reads those of every student."""
        assert teacher is not None
        share = self.num_rollouts / self.batch_size
        forward = sum(student.forward_flops(self.seq_len) for student in students)
        targets = teacher.forward_flops(self.seq_len) * (1 - share + share * len(students))
        return (3 + share / self.rollout_every) * forward + targets

    def start(
        self, teacher: "CausalLM | None", students: "Sequence[CausalLM]", device: "torch.device"
    ) -> "StepLosses":
        from evalsuite.distill.objectives.output_losses import OnPolicyLosses

        share, concurrent = self.num_rollouts / self.batch_size, self.num_concurrent(len(students))
        arguments = self.columns, teacher, students, concurrent, device
        shares = self._shares_logits(teacher, len(students))
        return OnPolicyLosses(self.loss_columns, share, *arguments, shares_logits=shares)

    def check_students(self, students: "Mapping[str, CausalLM]") -> None:
        """Every student has to run in the in-process engine."""
        from evalsuite.models.inference.torch.structure import unknown_structure

        super().check_students(students)
        for label, student in students.items():
            if (reason := unknown_structure(student.config, self.seq_len)) is not None:
                raise ConfigError(
                    f"stage '{self.name}': objective on_policy needs students that can generate; '{label}' "
                    f"cannot ({reason}); use objective kd"
                )

    @model_validator(mode="after")
    def _has_prompts(self) -> "OnPolicyDistillation":
        if self.loss.ce or not self.loss.kl:
            raise ValueError(
                "on_policy minimizes a divergence: a cross-entropy would train students on what they write; "
                "set loss.ce: 0 and loss.kl above 0"
            )
        if self.rollout_share and not self.num_rollouts:
            raise ValueError(
                f"'rollout_share' ({self.rollout_share}) of 'batch_size' ({self.batch_size}) is less than "
                "half a sequence; raise one of them, or set rollout_share: 0"
            )
        for field, needed in (("packing", "documents"), ("loss_mask", "completion")):
            if self.num_rollouts and getattr(self, field) != needed:
                raise ValueError(
                    f"on_policy continues the prompts of documents: '{field}' must be {needed}, not "
                    f"{getattr(self, field)}"
                )
        if self.max_new_tokens >= self.seq_len:
            raise ValueError(
                f"'max_new_tokens' ({self.max_new_tokens}) leaves no room for a prompt in a sequence of "
                f"'seq_len' ({self.seq_len}) tokens; lower it, or raise 'seq_len'"
            )
        return self


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
        return tokens.distillation(LossConfig(ce=1.0, kl=0.0))[:2]

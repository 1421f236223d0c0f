"""Defects of published code, reproduced to measure their effect.

Each is a definition that a recipe names in place of the correct one (docs/how-to/distil.md); nothing else
knows of them. linearization is the code of arXiv 2504.14366, hybrid-distillation that of the layer selection
of ICLR 2026.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from evalsuite.distill.objectives.end_to_end import (
    EndToEndStage,
    KnowledgeDistillation,
    SupervisedFineTuning,
)
from evalsuite.distill.optim.optimizers import OPTIMIZERS, AdamW
from evalsuite.distill.optim.schedules import SCHEDULES, WarmupStableDecay
from evalsuite.distill.recipe.stage import OBJECTIVES
from evalsuite.foundation import ConfigError
from evalsuite.models.inits import INITS, Init, repeat_blocks

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from evalsuite.distill.objectives.kl_and_cross_entropy import LossTokens
    from evalsuite.models.ops.recurrence import RecurrenceInputs


class HeadsOf32(Init):
    """Treats 32 rows as a head (linearization, `unroll_value_projection`).

    With heads of 64, two of three query heads of SmolLM2-135M start from halves of the wrong head.
    """

    def repeat_kv(self, weight: "Tensor", head_dim: int, times: int) -> "Tensor":
        if weight.shape[0] % 32:
            raise ConfigError(f"init qkvo_heads_of_32: {weight.shape[0]} rows do not divide into heads of 32")
        return repeat_blocks(weight, 32, times)


class RepeatedRows(Init):
    """Repeats single rows, which scrambles every head (hybrid-distillation, `'h d -> (h g) d'`)."""

    def repeat_kv(self, weight: "Tensor", head_dim: int, times: int) -> "Tensor":
        return repeat_blocks(weight, 1, times)


INITS.add("qkvo_heads_of_32", HeadsOf32("qkvo"))
INITS.add("qkvo_repeated_rows", RepeatedRows("qkvo"))


@OBJECTIVES.register("kd_batchmean")
class BatchmeanDistillation(KnowledgeDistillation):
    """As `kd`, with a KL that is divided by the batch size alone, a defect of published code.

    `kl_div(…, reduction="batchmean")` of [B, T, V] divides by B, so that the KL is `seq_len` times larger
    (linearization).
    """

    objective: Literal["kd_batchmean"]  # type: ignore[assignment]

    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        return tokens.distillation(self.loss.model_copy(update={"kl": self.loss.kl * self.seq_len}))


class LeakingState(EndToEndStage):
    """Recurrent states run on through all sequences of a micro-batch (Gated DeltaNet of linearization).

    Its recurrence reads the bounds of sequences anew from the caller, where they are missing; convolutions,
    positions and softmax layers respect them.
    """

    splits_sequences: ClassVar[bool] = False

    @property
    def recurrence(self) -> "Callable[[RecurrenceInputs], tuple[Tensor, Tensor]]":
        return leaking_recurrence


def leaking_recurrence(inputs: "RecurrenceInputs") -> "tuple[Tensor, Tensor]":
    """`compute_recurrence` on all sequences as one. Training only: no cached state, no padding."""
    from evalsuite.models.ops.recurrence import compute_recurrence

    assert inputs.initial_state is None
    o, last = compute_recurrence(inputs.with_tokens(lambda x: x.flatten(0, 1)[None], cu_seqlens=None))
    return o.view(inputs.v.shape), last


@OBJECTIVES.register("kd_leaking_state")
class LeakingDistillation(LeakingState, KnowledgeDistillation):
    """As `kd`, with recurrent states that leak from sequence to sequence, a defect of published code."""

    objective: Literal["kd_leaking_state"]  # type: ignore[assignment]


@OBJECTIVES.register("sft_leaking_state")
class LeakingFineTuning(LeakingState, SupervisedFineTuning):
    """As `sft`, with recurrent states that leak from sequence to sequence, a defect of published code."""

    objective: Literal["sft_leaking_state"]  # type: ignore[assignment]


@OPTIMIZERS.register("adamw_bf16")
class BF16AdamW(AdamW):
    """AdamW on bf16 weights without fp32 master weights, a defect of published code (linearization).

    Weights and states are rounded after every step, so that updates below 2⁻⁹ of a weight are lost.
    """

    kind: Literal["adamw_bf16"] = "adamw_bf16"  # type: ignore[assignment]
    state_bits: Literal[32] = 32

    def build(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr_of: Callable[[str], float],
        undecayed: Collection[str],
    ) -> "list[torch.optim.Optimizer]":
        optimizers = super().build(parameters, lr_of, undecayed)
        for optimizer in optimizers:
            optimizer.register_step_post_hook(_round_to_bf16)
        return optimizers


def _round_to_bf16(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
    """Round AdamW's weights and states as if stored so; PyTorch computes steps on bf16 weights in fp32."""
    import torch

    with torch.no_grad():
        for parameter, state in optimizer.state.items():
            for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"]):
                tensor.copy_(tensor.bfloat16())


@SCHEDULES.register("wsd_without_decay")
class WithoutDecay(WarmupStableDecay):
    """wsd whose phases take 20 + 80 + 10 % of the steps, a defect of published code: the decay never begins.

    linearization, `_build_lr_scheduler`.
    """

    kind: Literal["wsd_without_decay"]  # type: ignore[assignment]

    def decay_steps(self, steps: int) -> int:
        return 0

    @model_validator(mode="after")
    def _leaves_no_decay(self) -> "WithoutDecay":
        if self.warmup_ratio < 0.2:
            raise ValueError(
                "'kind: wsd_without_decay' reproduces a schedule whose decay never begins: it needs a "
                f"warmup_ratio of 0.2 or more, not {self.warmup_ratio}"
            )
        return self

"""End-to-end objectives on the model's output: knowledge distillation and next-token cross-entropy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.data.loader import MicroBatch
from evalsuite.distill.objectives.kl_and_cross_entropy import (
    DistillLossConfig,
    fused_linear_distillation,
)
from evalsuite.distill.recipe import Stage
from evalsuite.distill.training.cuda_streams import SideStreams
from evalsuite.distill.types import CausalLM


def distill_loss_config(stage: Stage) -> DistillLossConfig:
    """The loss of a stage; `sft` is cross-entropy alone."""
    if stage.objective == "sft":
        return DistillLossConfig(ce=1.0, kl=0.0)
    loss = stage.loss
    # The code published with arXiv 2504.14366 uses `batchmean`, which divides [B, T, V] by B alone.
    kl = loss.kl * (stage.seq_len if loss.kl_reduction == "batchmean" else 1)
    return DistillLossConfig(
        ce=loss.ce,
        kl=kl,
        temperature=loss.temperature,
        direction=loss.direction,
        top_k=loss.top_k,
        tail=loss.tail,
    )


class StudentWithLoss(nn.Module):
    """A student together with its loss: one forward pass that FSDP can wrap."""

    def __init__(self, student: CausalLM) -> None:
        super().__init__()
        self.student: Any = student

    def forward(
        self,
        batch: MicroBatch,
        config: DistillLossConfig,
        token_weights: Tensor,
        teacher_hidden: Tensor | None,
        teacher_weight: Tensor | None,
        streams: SideStreams,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, CE and KL of one micro-batch (see `fused_linear_distillation`).

        `streams` is joined before the teacher's hidden states are read.
        """
        hidden = select_loss_tokens(student_hidden_states(self.student, batch), batch)
        streams.join()
        return fused_linear_distillation(
            hidden,
            lm_head_weight(self.student),
            token_weights=token_weights,
            config=config,
            labels=loss_labels(batch),
            teacher_hidden=teacher_hidden,
            teacher_weight=teacher_weight,
        )


def end_to_end_backward(
    teacher: CausalLM | None,
    students: Sequence[StudentWithLoss],
    batch: MicroBatch,
    stage: Stage,
    num_loss_tokens: int,
) -> Tensor:
    """Accumulate the gradients of one micro-batch in every student; return [students, 3]: loss, CE, KL.

    Args:
        num_loss_tokens: loss tokens of the whole step; each has the weight 1 / num_loss_tokens.
    """
    config = distill_loss_config(stage)
    teacher_hidden = teacher_weight = None
    streams = SideStreams(1, batch.input_ids.device)
    if teacher is not None and config.kl:
        with torch.no_grad(), streams.fork(0):
            teacher_hidden = select_loss_tokens(teacher_hidden_states(teacher, batch), batch)
            teacher_weight = lm_head_weight(teacher)
    token_weights = torch.full(loss_labels(batch).shape, 1 / num_loss_tokens, device=batch.labels.device)
    losses = []
    for student in students:
        loss, ce, kl = student(batch, config, token_weights, teacher_hidden, teacher_weight, streams)
        loss.backward()
        losses.append(torch.stack([loss.detach(), ce, kl]))
    return torch.stack(losses)


def loss_labels(batch: MicroBatch) -> Tensor:
    """Labels of the loss tokens [N]."""
    flat = batch.labels.flatten()
    return flat if batch.loss_indices is None else flat[batch.loss_indices]


def teacher_hidden_states(teacher: CausalLM, batch: MicroBatch) -> Tensor:
    """Last hidden states [B, T, D] of the teacher."""
    decoder, config = teacher.model, teacher.config
    window = getattr(config, "sliding_window", None)
    causal = batch.position_ids is None and (window is None or window >= batch.input_ids.shape[1])
    if config._attn_implementation != "sdpa" or not causal:
        output = decoder(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    # transformers' decoder synchronizes with the GPU to check the positions for packed documents. Unpacked
    # sequences need no mask: SDPA layers are causal without one.
    hidden = decoder.embed_tokens(batch.input_ids)
    positions = torch.arange(batch.input_ids.shape[1], device=hidden.device)[None]
    rotary = decoder.rotary_emb(hidden, positions)
    for layer in decoder.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, use_cache=False, position_embeddings=rotary
        )
    last: Tensor = decoder.norm(hidden)
    return last


def student_hidden_states(model: CausalLM, batch: MicroBatch) -> Tensor:
    """Last hidden states [B, T, D] of a student; packed documents run as one varlen sequence."""
    if batch.cu_seqlens is None or batch.position_ids is None or not hasattr(model.config, "mixers"):
        output = model.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    output = model.model(
        input_ids=batch.input_ids.view(1, -1),
        position_ids=batch.position_ids.view(1, -1),
        cu_seqlens=batch.cu_seqlens,
        row_length=batch.input_ids.shape[1],
        use_cache=False,
    )
    hidden = output.last_hidden_state
    return hidden.view(*batch.input_ids.shape, -1)


def lm_head_weight(model: CausalLM) -> Tensor:
    """Weight [V, D] of the language-model head."""
    weight: Tensor = model.get_output_embeddings().weight
    return weight


def select_loss_tokens(hidden: Tensor, batch: MicroBatch) -> Tensor:
    """[B, T, D] → [N, D]: the positions of the loss tokens."""
    flat = hidden.flatten(0, 1)
    return flat if batch.loss_indices is None else flat[batch.loss_indices]

"""The objectives on the model's output: knowledge distillation and plain next-token training."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.batches import Batch
from evalsuite.distill.chunked_loss import KdForm, chunked_loss
from evalsuite.distill.lanes import Lanes
from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.recipe import Stage


def kd_form(stage: Stage) -> KdForm:
    """The form of the loss that a stage asks for; `sft` is its cross-entropy alone."""
    if stage.objective == "sft":
        return KdForm(ce=1.0, kl=0.0)
    loss = stage.loss
    # In the code published with arXiv 2504.14366 `batchmean` divides [B, T, V] by B alone.
    kl = loss.kl * (stage.length if loss.scale == "times_length" else 1)
    return KdForm(
        ce=loss.ce,
        kl=kl,
        temperature=loss.temperature,
        direction=loss.direction,
        top_k=loss.top_k,
        rest=loss.rest,
    )


class Objective(nn.Module):
    """A student together with its loss: one forward pass that sharded training can wrap."""

    def __init__(self, student: LanguageModel) -> None:
        super().__init__()
        self.student: Any = student

    def forward(
        self,
        batch: Batch,
        form: KdForm,
        token_weights: Tensor,
        teacher_hidden: Tensor | None,
        teacher_head: Tensor | None,
        lanes: Lanes,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, CE and KL of one micro-batch; see `chunked_loss`. `lanes` brings the teacher's states."""
        hidden = _kept(decode(self.student, batch), batch)
        lanes.join()
        return chunked_loss(
            hidden,
            head_weight(self.student),
            token_weights=token_weights,
            form=form,
            labels=kept_labels(batch),
            teacher_hidden=teacher_hidden,
            teacher_weight=teacher_head,
        )


def end_to_end(
    teacher: LanguageModel | None,
    objectives: Sequence[Objective],
    batch: Batch,
    stage: Stage,
    counted: int,
) -> Tensor:
    """Add the gradients of one micro-batch to every student, and return [students, 3]: loss, CE, KL.

    Args:
        counted: labels that count in the whole step; each of them weighs 1 / counted.
    """
    form = kd_form(stage)
    teacher_hidden = teacher_head = None
    lanes = Lanes(1, batch.inputs.device)
    if teacher is not None and form.kl:
        with torch.no_grad(), lanes.beside(0):
            teacher_hidden = _kept(run_teacher(teacher, batch), batch)
            teacher_head = head_weight(teacher)
    weights = torch.full(kept_labels(batch).shape, 1 / counted, device=batch.labels.device)
    losses = []
    for objective in objectives:
        loss, ce, kl = objective(batch, form, weights, teacher_hidden, teacher_head, lanes)
        loss.backward()
        losses.append(torch.stack([loss.detach(), ce, kl]))
    return torch.stack(losses)


def kept_labels(batch: Batch) -> Tensor:
    """The labels that count, [N]."""
    flat = batch.labels.flatten()
    return flat if batch.kept is None else flat[batch.kept]


def run_teacher(teacher: LanguageModel, batch: Batch) -> Tensor:
    """Last hidden states [B, T, D] of the teacher."""
    core, config = teacher.model, teacher.config
    window = getattr(config, "sliding_window", None)
    plain = batch.positions is None and (window is None or window >= batch.inputs.shape[1])
    if config._attn_implementation != "sdpa" or not plain:
        output = core(input_ids=batch.inputs, position_ids=batch.positions, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    # The decoder's own forward asks the GPU whether the positions hold packed documents, and waits for the
    # answer; without a mask its layers are causal, which is all that plain rows need.
    hidden = core.embed_tokens(batch.inputs)
    positions = torch.arange(batch.inputs.shape[1], device=hidden.device)[None]
    rotary = core.rotary_emb(hidden, positions)
    for layer in core.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, use_cache=False, position_embeddings=rotary
        )
    last: Tensor = core.norm(hidden)
    return last


def decode(model: LanguageModel, batch: Batch) -> Tensor:
    """Last hidden states [B, T, D] of a student; packed documents are run as one long row."""
    if batch.cu_seqlens is None or batch.positions is None or not hasattr(model.config, "mixers"):
        output = model.model(input_ids=batch.inputs, position_ids=batch.positions, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    output = model.model(
        input_ids=batch.inputs.view(1, -1),
        position_ids=batch.positions.view(1, -1),
        cu_seqlens=batch.cu_seqlens,
        row_length=batch.inputs.shape[1],
        use_cache=False,
    )
    hidden = output.last_hidden_state
    return hidden.view(*batch.inputs.shape, -1)


def head_weight(model: LanguageModel) -> Tensor:
    """The weight [V, D] of the language-model head."""
    weight: Tensor = model.get_output_embeddings().weight
    return weight


def _kept(hidden: Tensor, batch: Batch) -> Tensor:
    """[B, T, D] → [N, D]: the places whose labels count."""
    flat = hidden.flatten(0, 1)
    return flat if batch.kept is None else flat[batch.kept]

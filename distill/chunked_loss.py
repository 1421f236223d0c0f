"""Losses over the vocabulary that never hold a [batch, time, vocabulary] tensor.

The language-model heads of teacher and student are applied chunk by chunk of tokens; each chunk's loss
and its gradient with respect to the student's logits are computed at once and multiplied back through
the head, so that only [chunk, vocabulary] exists. All of it happens in the forward pass; the backward
pass scales what is stored. On CUDA one kernel does what lies between the products (`kernels`).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from evalsuite.models.recurrence import using_fla

DEFAULT_CHUNK_BYTES = 1 << 29
"""Size of one chunk of logits, in bytes of the accumulating type."""
KERNEL_CHUNK = 8192
"""Tokens of one chunk where a kernel reads the logits as they come, so that two bf16 tensors are all."""


@dataclass(frozen=True, kw_only=True)
class KdForm:
    """Weights and form of the loss; see `evalsuite.distill.recipe.Loss` for each field."""

    ce: float = 0.0
    kl: float = 1.0
    temperature: float = 1.0
    direction: Literal["forward", "reverse"] = "forward"
    top_k: int | None = None
    rest: Literal["renormalise", "bucket"] = "renormalise"


def kd_per_token(student: Tensor, teacher: Tensor, form: KdForm) -> Tensor:
    """KL of each token, times temperature², from logits [N, V]; the definition, differentiable.

    forward: Σ p_T (log p_T − log p_S), arXiv 2504.14366 Eq. 6; reverse with the two exchanged. With
    `top_k` the sum runs over the teacher's K likeliest tokens, with both distributions renormalised over
    these K, or with all other tokens as one more outcome.
    """
    student, teacher = student / form.temperature, teacher / form.temperature
    if form.top_k is None or form.top_k >= teacher.shape[-1]:
        log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    elif form.rest == "renormalise":
        top, indices = teacher.topk(form.top_k, dim=-1)
        log_s, log_t = student.gather(-1, indices).log_softmax(-1), top.log_softmax(-1)
    else:
        indices = teacher.topk(form.top_k, dim=-1).indices
        log_s, log_t = _with_bucket(student, indices), _with_bucket(teacher, indices)
    if form.direction == "reverse":
        log_s, log_t = log_t, log_s
    return (log_t.exp() * (log_t - log_s)).sum(-1) * form.temperature**2


def _with_bucket(logits: Tensor, indices: Tensor) -> Tensor:
    """Log-probabilities of the tokens at `indices` [N, K], and of all others together: [N, K+1]."""
    total = logits.logsumexp(-1, keepdim=True)
    others = torch.ones_like(logits, dtype=torch.bool).scatter(-1, indices, False)
    bucket = logits.masked_fill(~others, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, indices), bucket], -1) - total


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor | None,
        teacher_hidden: Tensor | None,
        teacher_weight: Tensor | None,
        token_weights: Tensor,
        form: KdForm,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        accumulate = torch.promote_types(hidden.dtype, torch.float32)
        cast = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else None
        )
        compute = cast or torch.promote_types(hidden.dtype, weight.dtype)
        head = weight.to(compute)
        teacher_head = None if teacher_weight is None else teacher_weight.to(compute)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=accumulate) if need_weight else None
        ce = torch.zeros((), dtype=accumulate, device=hidden.device)
        kl = torch.zeros_like(ce)
        kernel = _kernel_serves(hidden, form)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], chunk):
                piece = slice(start, start + chunk)
                rows = hidden[piece].to(compute)
                logits = rows @ head.T
                teacher_logits = None
                if teacher_head is not None and teacher_hidden is not None:
                    teacher_logits = teacher_hidden[piece].to(compute) @ teacher_head.T
                ce_part, kl_part, gradient = (_by_kernel if kernel else _loss_and_gradient)(
                    logits,
                    teacher_logits,
                    None if labels is None else labels[piece],
                    token_weights[piece].to(accumulate),
                    form,
                )
                ce += ce_part
                kl += kl_part
                if grad_hidden is not None or grad_weight is not None:
                    gradient = gradient.to(compute)
                if grad_hidden is not None:
                    grad_hidden[piece] = gradient @ head
                if grad_weight is not None:
                    grad_weight += gradient.T @ rows
        ctx.save_for_backward(grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(ce, kl)
        return form.ce * ce + form.kl * kl, ce, kl

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden * grad_loss.to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight * grad_loss.to(grad_weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None, None


def _kernel_serves(hidden: Tensor, form: KdForm) -> bool:
    """Whether the Triton kernel computes this form here; the rarer forms stay in torch."""
    usual = form.direction == "forward" and form.top_k is None and (form.temperature == 1 or form.ce == 0)
    return usual and hidden.is_cuda and using_fla(hidden)


def _by_kernel(
    logits: Tensor, teacher_logits: Tensor | None, labels: Tensor | None, weights: Tensor, form: KdForm
) -> tuple[Tensor, Tensor, Tensor]:
    """What `_loss_and_gradient` computes, by one kernel; `logits` becomes the gradient."""
    from evalsuite.distill.kernels import row_losses

    ce, kl = row_losses(
        logits,
        teacher_logits,
        labels,
        weights,
        ce=form.ce if labels is not None else 0.0,
        kl=form.kl if teacher_logits is not None else 0.0,
        temperature=form.temperature,
    )
    return ce, kl, logits


def _loss_and_gradient(
    logits: Tensor, teacher_logits: Tensor | None, labels: Tensor | None, weights: Tensor, form: KdForm
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sums of CE and KL over one chunk, and the gradient of ce·CE + kl·KL by the logits [C, V].

    `logits` and `teacher_logits` are overwritten where they are fp32 at least, in which all is computed.
    """
    accumulate = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(accumulate)
    if teacher_logits is not None:
        teacher_logits = teacher_logits.to(accumulate)
    ce = kl = logits.new_zeros(())
    plain = form.direction == "forward" and form.top_k is None
    if teacher_logits is not None and form.kl and not plain:
        return _loss_by_autograd(logits, teacher_logits, labels, weights, form)
    gradient: Tensor | None = None
    if labels is not None and form.ce:
        log_s = logits.log_softmax(-1) if teacher_logits is not None else _log_softmax_(logits)
        ce = -(log_s.gather(-1, labels[:, None])[:, 0] * weights).sum()
        gradient = log_s.exp_()
        gradient.scatter_add_(-1, labels[:, None], -torch.ones_like(weights)[:, None])
        gradient *= (weights * form.ce)[:, None]
    if teacher_logits is not None and form.kl:
        temperature = form.temperature
        if temperature != 1:
            logits /= temperature
            teacher_logits /= temperature
        log_s, log_t = _log_softmax_(logits), _log_softmax_(teacher_logits)
        p_t = log_t.exp()
        kl = (p_t * log_t.sub_(log_s)).sum(-1).mul(weights).sum() * temperature**2
        # d KL / d logits = (p_S − p_T) / τ, times the τ² that keeps its size comparable with CE's.
        kl_gradient = log_s.exp_().sub_(p_t).mul_((weights * (form.kl * temperature))[:, None])
        gradient = kl_gradient if gradient is None else gradient.add_(kl_gradient)
    if gradient is None:
        gradient = torch.zeros_like(logits)
    return ce, kl, gradient


def _log_softmax_(logits: Tensor) -> Tensor:
    return logits.sub_(logits.logsumexp(-1, keepdim=True))


def _loss_by_autograd(
    logits: Tensor, teacher_logits: Tensor, labels: Tensor | None, weights: Tensor, form: KdForm
) -> tuple[Tensor, Tensor, Tensor]:
    """The rarer forms, differentiated by torch: more passes over a chunk, the same memory bound."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        kl = (kd_per_token(leaf, teacher_logits, form) * weights).sum()
        ce = logits.new_zeros(())
        if labels is not None and form.ce:
            ce = -(leaf.log_softmax(-1).gather(-1, labels[:, None])[:, 0] * weights).sum()
        (gradient,) = torch.autograd.grad(form.ce * ce + form.kl * kl, leaf)
    return ce.detach(), kl.detach(), gradient


def chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    *,
    token_weights: Tensor,
    form: KdForm,
    labels: Tensor | None = None,
    teacher_hidden: Tensor | None = None,
    teacher_weight: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """ce · Σ w CE + kl · Σ w KL over tokens, without the logits of all tokens at once.

    Args:
        hidden: the student's last hidden states [N, D]; weight: its head [V, D].
        token_weights: w of each token [N]; for a per-token mean, 1 / (number of tokens that count).
        labels: the next token [N]; needed where form.ce > 0.
        teacher_hidden, teacher_weight: [N, Dt] and [V, Dt], without gradient; needed where form.kl > 0.
        chunk: tokens at a time; the result does not depend on it beyond rounding.

    Returns:
        The loss (with gradients for `hidden` and `weight`), and the two weighted sums on their own.
    """
    if chunk is None and _kernel_serves(hidden, form):
        chunk = KERNEL_CHUNK
    elif chunk is None:
        size = torch.promote_types(hidden.dtype, torch.float32).itemsize
        chunk = max(256, DEFAULT_CHUNK_BYTES // (size * weight.shape[0]))
    result: tuple[Tensor, Tensor, Tensor] = _ChunkedLoss.apply(
        hidden, weight, labels, teacher_hidden, teacher_weight, token_weights, form, chunk
    )
    return result

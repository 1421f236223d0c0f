"""Fused linear layer and distillation loss, without a [batch, time, vocabulary] tensor of logits.

The language-model heads of teacher and student are applied to one chunk of tokens at a time. The loss of a
chunk and its gradient with respect to the student's logits are computed at once and multiplied back through
the head, so that only [chunk, vocabulary] exists in memory. All of this happens in the forward pass; the
backward pass scales the stored gradients. On CUDA, one Triton kernel (`evalsuite.models.ops`) computes
loss and gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.distill.objectives.divergences import divergence
from evalsuite.distill.objectives.top_tokens import (
    TopTokens,
    bucket_loss_and_gradient,
    top_kl,
    top_tokens,
)
from evalsuite.distill.recipe.config import LossConfig
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.models.ops.distill_loss import row_losses

DEFAULT_CHUNK_BYTES = 1 << 29
"""Size of one chunk of logits, in bytes of the accumulation dtype."""
TRITON_CHUNK_SIZE = 8192
"""Tokens per chunk with the Triton kernel, which needs no fp32 copies of the logits; fewer where they take
more than twice `DEFAULT_CHUNK_BYTES`."""


def kd_per_token(student: Tensor, teacher: Tensor, config: LossConfig) -> Tensor:
    """Reference implementation of the divergence of each token, times temperature², from logits [N, V];
    differentiable.

    With `top_k`, the sum runs over the teacher's K most likely tokens, with both distributions renormalized
    over these K tokens, or with all other tokens as one additional outcome.
    """
    if config.top_k is not None and config.top_k < teacher.shape[-1]:
        return top_kl(student, top_tokens(teacher, config.top_k, config.temperature), config)
    log_s, log_t = ((logits / config.temperature).log_softmax(-1) for logits in (student, teacher))
    return divergence(log_t, log_s, config) * config.temperature**2


def head_logits(hidden: Tensor, weight: Tensor, head: LanguageModelHead) -> Tensor:
    """Logits [N, V] of hidden states [N, D] and the head, whose weight [V, D] is given in their dtype."""
    bias = None if head.bias is None else head.bias.to(weight.dtype)
    return head.transform(functional.linear(hidden, weight, bias))


def compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Of the products with the head."""
    if torch.is_autocast_enabled(hidden.device.type):
        return torch.get_autocast_dtype(hidden.device.type)
    return torch.promote_types(hidden.dtype, weight.dtype)


class _FusedLinearDistillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        tokens: "LossTokens",
        config: LossConfig,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        student, teacher, teacher_hidden = tokens.head, tokens.teacher_head, tokens.teacher_hidden
        accumulate = torch.promote_types(hidden.dtype, torch.float32)
        compute = compute_dtype(hidden, weight)
        head = weight.to(compute)
        teacher_weight = None if teacher is None else teacher.weight.to(compute)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=accumulate) if need_weight else None
        ce = torch.zeros((), dtype=accumulate, device=hidden.device)
        kl = torch.zeros_like(ce)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], chunk_size):
                chunk = slice(start, start + chunk_size)
                states = hidden[chunk].to(compute)
                logits = head_logits(states, head, student)
                # Before the loss overwrites the logits.
                slope = student.slope(logits)
                teacher_logits, top = None, None
                if tokens.top is not None:
                    top = tokens.top.chunk(chunk, accumulate)
                elif tokens.teacher_logits is not None:
                    teacher_logits = tokens.teacher_logits[chunk]
                    if teacher_logits.dtype == accumulate:
                        # The loss may overwrite it.
                        teacher_logits = teacher_logits.clone()
                elif teacher is not None and teacher_weight is not None and teacher_hidden is not None:
                    teacher_logits = head_logits(teacher_hidden[chunk].to(compute), teacher_weight, teacher)
                chunk_ce, chunk_kl, gradient = _loss_and_gradient(
                    logits,
                    teacher_logits,
                    top,
                    _labels_in_ce(tokens.labels[chunk], teacher_logits, top, config),
                    tokens.weights[chunk].to(accumulate),
                    config,
                )
                ce += chunk_ce
                kl += chunk_kl
                if slope is not None:
                    gradient = gradient * slope
                if grad_hidden is not None or grad_weight is not None:
                    gradient = gradient.to(compute)
                if grad_hidden is not None:
                    grad_hidden[chunk] = gradient @ head
                if grad_weight is not None:
                    grad_weight += gradient.T @ states
        ctx.save_for_backward(grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(ce, kl)
        return config.ce * ce + config.kl * kl, ce, kl

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden * grad_loss.to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight * grad_loss.to(grad_weight.dtype)
        return grad_hidden, grad_weight, None, None, None


def _labels_in_ce(
    labels: Tensor, teacher_logits: Tensor | None, top: TopTokens | None, config: LossConfig
) -> Tensor:
    """The labels, −1 for tokens without a cross-entropy."""
    if config.ce_tokens == "all":
        return labels
    if top is not None:
        return labels.where(top.ids[:, 0] == labels, -1)
    assert teacher_logits is not None
    return labels.where(teacher_logits.argmax(-1) == labels, -1)


def _loss_and_gradient(
    logits: Tensor,
    teacher_logits: Tensor | None,
    top: TopTokens | None,
    labels: Tensor,
    weights: Tensor,
    config: LossConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sums of CE and KL over one chunk, and the gradient of ce·CE + kl·KL w.r.t. the logits [C, V].

    Computed in fp32 or above; `logits` and `teacher_logits` may be overwritten.
    """
    if not config.kl or (top is None and (teacher_logits is None or config.has_kernel)):
        return row_losses(
            logits,
            teacher_logits,
            labels,
            weights,
            ce=config.ce,
            kl=config.kl,
            temperature=config.temperature,
        )
    accumulate = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(accumulate)
    teacher = None if teacher_logits is None else teacher_logits.to(accumulate)
    if teacher is not None and config.top_k is not None and config.top_k < teacher.shape[-1]:
        top = top_tokens(teacher, config.top_k, config.temperature)
    if top is None:
        assert teacher is not None
        kl = partial(kd_per_token, teacher=teacher, config=config)
    else:
        one_softmax = config.temperature == 1 or not config.ce
        if config.tail == "bucket" and config.direction == "forward" and one_softmax:
            return bucket_loss_and_gradient(logits, top, labels, weights, config)
        kl = partial(top_kl, top=top, config=config)
    return _loss_by_autograd(logits, kl, labels, weights, config)


def _loss_by_autograd(
    logits: Tensor,
    kl_per_token: Callable[[Tensor], Tensor],
    labels: Tensor,
    weights: Tensor,
    config: LossConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Other divergences and top-k, by autograd: more passes over a chunk, the same memory bound."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        kl = (kl_per_token(leaf) * weights).sum()
        ce = logits.new_zeros(())
        if config.ce:
            chosen = leaf.log_softmax(-1).gather(-1, labels.clamp(min=0)[:, None])[:, 0]
            ce = -(chosen * weights.where(labels >= 0, 0)).sum()
        (gradient,) = torch.autograd.grad(config.ce * ce + config.kl * kl, leaf)
    return ce.detach(), kl.detach(), gradient


@dataclass(frozen=True, eq=False)
class LossTokens:
    """The N loss tokens of a micro-batch, before the language-model head.

    hidden, teacher_hidden: last hidden states [N, D]. labels: the next tokens [N]. weights: [N], those of
    the tokens over the number of loss tokens of the step. The teacher's are None if it does not run; they get
    no gradient. top: what a teacher store has in their place. teacher_logits: [N, V], computed once for
    several students; None: each computes them in chunks.
    """

    hidden: Tensor
    head: LanguageModelHead
    labels: Tensor
    weights: Tensor
    teacher_hidden: Tensor | None
    teacher_head: LanguageModelHead | None
    top: TopTokens | None = None
    teacher_logits: Tensor | None = None

    def distillation(
        self, config: LossConfig, *, chunk_size: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """ce · Σ w CE + kl · Σ w KL over tokens, without materializing the logits of all tokens.

        Args:
            config: needs the teacher if its kl > 0 or its cross-entropy is of the tokens that it has right.
            chunk_size: tokens per chunk; affects the result by rounding only.

        Returns:
            The loss (differentiable w.r.t. `hidden` and the head's weight), Σ w CE and Σ w KL.
        """
        weight = self.head.weight
        if chunk_size is None:
            size = torch.promote_types(self.hidden.dtype, torch.float32).itemsize
            chunk_size = max(256, DEFAULT_CHUNK_BYTES // (size * weight.shape[0]))
            weighs = {"ce": config.ce, "temperature": config.temperature}
            if config.has_kernel and row_losses.applies(self.hidden, **weighs):
                chunk_size = min(TRITON_CHUNK_SIZE, 4 * chunk_size)
        result: tuple[Tensor, Tensor, Tensor] = _FusedLinearDistillation.apply(
            self.hidden, weight, self, config, chunk_size
        )
        return result

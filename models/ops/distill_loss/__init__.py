"""Cross-entropy and forward KL over the vocabulary, with their gradient."""

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import Kernel, op


# One softmax serves both losses.
@op(
    training=Kernel(
        module="training",
        where=lambda *_, ce, temperature, **__: temperature == 1 or ce == 0,
    )
)
def row_losses(
    logits: Tensor,
    teacher_logits: Tensor | None,
    labels: Tensor | None,
    weights: Tensor,
    *,
    ce: float,
    kl: float,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sums of CE and forward KL (times temperature²) over rows, and the gradient of ce·CE + kl·KL.

    Computed in float32 or above.

    Args:
        logits: the student's [C, V]; overwritten by the kernel, and here if they have the dtype of the
            computation, as those of the teacher.
        teacher_logits: [C, V]; None: no KL.
        labels: int64 [C]; None: no CE; negative ones have no cross-entropy.
        weights: weight of each token, float32 [C].
        ce, kl: weights of the two losses in the gradient; a loss of weight 0 is not computed.
        temperature: τ of both softmaxes of the KL (arXiv 2504.14366, Eq. 6).

    Returns:
        Σ w CE, Σ w KL, and the gradient with respect to the logits [C, V].
    """
    accumulate = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(accumulate)
    if teacher_logits is not None:
        teacher_logits = teacher_logits.to(accumulate)
    total_ce = total_kl = logits.new_zeros(())
    gradient: Tensor | None = None
    if labels is not None and ce:
        log_s = logits.log_softmax(-1) if teacher_logits is not None else _log_softmax_(logits)
        places, ce_weights = labels.clamp(min=0)[:, None], weights.where(labels >= 0, 0)
        total_ce = -(log_s.gather(-1, places)[:, 0] * ce_weights).sum()
        gradient = log_s.exp_()
        gradient.scatter_add_(-1, places, -torch.ones_like(weights)[:, None])
        gradient *= (ce_weights * ce)[:, None]
    if teacher_logits is not None and kl:
        if temperature != 1:
            logits /= temperature
            teacher_logits /= temperature
        log_s, log_t = _log_softmax_(logits), _log_softmax_(teacher_logits)
        p_t = log_t.exp()
        total_kl = (p_t * log_t.sub_(log_s)).sum(-1).mul(weights).sum() * temperature**2
        # d KL / d logits = (p_S − p_T) / τ, times the τ² that keeps its scale comparable with CE.
        kl_gradient = log_s.exp_().sub_(p_t).mul_((weights * (kl * temperature))[:, None])
        gradient = kl_gradient if gradient is None else gradient.add_(kl_gradient)
    return total_ce, total_kl, torch.zeros_like(logits) if gradient is None else gradient


def _log_softmax_(logits: Tensor) -> Tensor:
    return logits.sub_(logits.logsumexp(-1, keepdim=True))

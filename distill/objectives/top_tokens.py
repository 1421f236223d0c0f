"""KL over the teacher's K most likely tokens, from its logits or from a teacher store.

With p the teacher's distribution, s the student's, T the tokens outside of the K, p_T and s_T their mass, and
all of T as one outcome (`tail: bucket`), the KL is a lower bound of that over the vocabulary, by the log-sum
inequality:

    KL(p ‖ s) = KL_bucket + p_T · KL(p̃ ‖ s̃),    p̃ = p / p_T and s̃ = s / s_T on T.

The difference is at most p_T · (log min(1, p_K / p_T) + log s_T / min s), with p_K the least likely of the K:
no token of T is likelier, so that Σ p̃ log p̃ ≤ log max p̃ ≤ log min(1, p_K / p_T); and −Σ p̃ log s̃ ≤
−log min s̃. It depends on the student, which can give any token of T a probability near 0. That of the
gradients does not: w.r.t. the student's logits, the gradient of KL_bucket is s − p on the K tokens and
s − p_T · s̃ on T, so that it differs from s − p by p_T · (p̃ − s̃), of L1 norm at most 2 · p_T. The mass p_T,
which a store has, therefore tells whether K is large enough.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from evalsuite.distill.objectives.divergences import divergence
from evalsuite.distill.recipe.config import LossConfig


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The teacher's K most likely tokens after each of N tokens.

    ids: [N, K], the most likely first. log_probs: [N, K + 1] at the temperature of the loss, the last one of
    all other tokens together.
    """

    ids: Tensor
    log_probs: Tensor

    def chunk(self, places: slice, dtype: torch.dtype) -> "TopTokens":
        """Those of some tokens, as int64 and in a dtype."""
        return TopTokens(self.ids[places].long(), self.log_probs[places].to(dtype))


def top_tokens(logits: Tensor, k: int, temperature: float = 1.0) -> TopTokens:
    """The K most likely tokens by logits [N, V] over the temperature; K < V."""
    scaled = logits / temperature
    ids = scaled.topk(k, dim=-1).indices
    return TopTokens(ids, _with_bucket(scaled, ids))


def top_kl(student: Tensor, top: TopTokens, config: LossConfig) -> Tensor:
    """Divergence of each token times temperature² [N], from the student's logits [N, V]; differentiable."""
    student = student / config.temperature
    if config.tail == "renormalize":
        log_s, log_t = student.gather(-1, top.ids).log_softmax(-1), top.log_probs[:, :-1].log_softmax(-1)
    else:
        log_s, log_t = _with_bucket(student, top.ids), top.log_probs
    return divergence(log_t, log_s, config) * config.temperature**2


def bucket_loss_and_gradient(
    logits: Tensor, top: TopTokens, labels: Tensor, weights: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ w CE and Σ w KL of forward KL with a bucket, and the gradient of ce·CE + kl·KL w.r.t. logits [N, V].

    The gradient is in closed form (see above), so that the logits, which are overwritten, are read fewer
    times than by autograd. A cross-entropy needs temperature 1, as its softmax is that of the KL.

    Args:
        labels: [N]; those below 0 have no cross-entropy.
    """
    tau, k = config.temperature, top.ids.shape[1]
    logits = logits if tau == 1 else logits.div_(tau)
    places, counted = labels.clamp(min=0)[:, None], weights.where(labels >= 0, 0)
    # Unnormalized: one exponential of each logit, which becomes its gradient.
    z = logits.sub_(logits.amax(-1, keepdim=True))
    top_z, label_z = z.gather(-1, top.ids), z.gather(-1, places)[:, 0]
    e = z.exp_().scatter_(-1, top.ids, 0.0)
    tail = e.sum(-1)
    total = tail + top_z.exp().sum(-1)
    log_total = total.log()
    # A tail that underflows has no gradient of its own, and must not make that of others infinite.
    log_tail = (tail / total).clamp_(min=torch.finfo(e.dtype).tiny).log()
    log_s, log_t = torch.cat([top_z - log_total[:, None], log_tail[:, None]], -1), top.log_probs
    p, s = log_t.exp(), log_s.exp()
    ce = ((log_total - label_z) * counted).sum()
    kl = ((p * (log_t - log_s)).sum(-1) * weights).sum() * tau**2
    # d KL / d logits has a factor 1 / τ, times the τ² that keeps its scale comparable with CE.
    kl_weights, ce_weights = weights * (config.kl * tau), counted * config.ce
    outside = kl_weights * (1 - p[:, k] / s[:, k]) + ce_weights
    inside = kl_weights[:, None] * (s - p)[:, :k] + ce_weights[:, None] * s[:, :k]
    gradient = e.mul_((outside / total)[:, None]).scatter_(-1, top.ids, inside)
    if config.ce:
        gradient.scatter_add_(-1, places, -ce_weights[:, None])
    return ce if config.ce else torch.zeros_like(ce), kl, gradient


def _with_bucket(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of the tokens at `ids` [N, K], and of all other tokens combined: [N, K + 1]."""
    total = logits.logsumexp(-1, keepdim=True)
    bucket = logits.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, ids), bucket], -1) - total

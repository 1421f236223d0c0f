"""Divergences of the student's next-token distribution from the teacher's."""

import math

import torch
from torch import Tensor

from evalsuite.distill.recipe.config import LossConfig


def divergence(log_t: Tensor, log_s: Tensor, config: LossConfig) -> Tensor:
    """Divergence of each token, from log-probabilities [N, V] of teacher and student; differentiable.

    forward: KL(T ‖ S), arXiv 2504.14366 Eq. 6. reverse: KL(S ‖ T). jsd: β KL(T ‖ M) + (1 − β) KL(S ‖ M) with
    M = β T + (1 − β) S (GKD, arXiv 2306.13649, section 2); divided by β, it tends to the forward KL for
    β → 0, and divided by 1 − β to the reverse KL for β → 1.
    """
    if config.direction == "reverse":
        return _kl(log_s, log_t)
    if config.direction == "forward":
        return _kl(log_t, log_s)
    beta = config.jsd_beta
    log_m = torch.logaddexp(log_t + math.log(beta), log_s + math.log1p(-beta))
    return beta * _kl(log_t, log_m) + (1 - beta) * _kl(log_s, log_m)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)

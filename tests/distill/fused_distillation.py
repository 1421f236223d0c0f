"""The fused loss of tensors, without the head's module."""

from types import SimpleNamespace

import torch
from torch import Tensor

from evalsuite.distill.objectives.kl_and_cross_entropy import LossTokens
from evalsuite.distill.objectives.top_tokens import TopTokens
from evalsuite.distill.recipe.config import LossConfig
from evalsuite.models.decoder.head import LanguageModelHead


def fused_linear_distillation(
    hidden: Tensor,
    weight: Tensor,
    *,
    token_weights: Tensor,
    config: LossConfig,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    labels: Tensor | None = None,
    chunk_size: int | None = None,
    top: TopTokens | None = None,
    teacher_logits: Tensor | None = None,
    bias: Tensor | None = None,
    **transform: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`LossTokens.distillation`; without labels, they are all 0. Both heads have `bias` and `transform`."""
    head, teacher_head = (
        LanguageModelHead(SimpleNamespace(weight=each, bias=bias), **transform)
        for each in (weight, teacher_weight)
    )
    if labels is None:
        labels = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
    tokens = LossTokens(
        hidden, head, labels, token_weights, teacher_hidden, teacher_head, top, teacher_logits
    )
    return tokens.distillation(config, chunk_size=chunk_size)

"""MetaLA: HGRN2's recurrence, and each token adds its own value once more by how well its query and key
agree: o_t = S_tᵀ q_t + σ(q_t · (w ⊙ k_t)) v_t (arXiv 2411.10741, section 4)."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.mixers.base import Terms
from evalsuite.models.mixers.hgrn2 import HGRN2, HGRN2Options
from evalsuite.models.mixers.options import MixerOptions


class MetaLA(HGRN2):
    """No key projection, dynamic decay, self-augmentation."""

    name = "metala"
    Options: ClassVar[type[MixerOptions]] = HGRN2Options

    def build(self) -> None:
        super().build()
        self.augment = nn.Parameter(torch.empty(self.heads, self.head_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.zeros_(self.augment)

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        terms = super().gates(x, terms)
        agreement = (terms.q * self.augment.to(terms.q.dtype) * terms.k).sum(-1)
        return replace(terms, skip=torch.sigmoid(agreement))

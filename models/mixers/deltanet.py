"""DeltaNet: S_t = (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ (arXiv 2406.06484, Eq. 3)."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.gated_deltanet import DeltaOptions, write_strength
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import PerHead


class DeltaNet(Mixer):
    """Each write replaces what its key held; nothing is forgotten otherwise."""

    name = "deltanet"
    Options: ClassVar[type[MixerOptions]] = DeltaOptions
    options: DeltaOptions

    def build(self) -> None:
        self.write = PerHead(self.geometry.hidden, self.heads, bias=False)

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        return replace(terms, beta=write_strength(self.write(x), self.options.negative_eigenvalues))

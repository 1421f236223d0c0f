"""Gated DeltaNet-2: S_t = (I − k_t (b_t ⊙ k_t)ᵀ) Diag(α_t) S_{t-1} + k_t (w_t ⊙ v_t)ᵀ, KDA with gates per
channel for what is erased and for what is written (arXiv 2605.22791). With b = w = β it is KDA.

The written values w ⊙ v are those that a window and the attention matrix get as values.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from evalsuite.models.mixers.gated_deltanet import delta_beta
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.kda import ChannelDecayMixer, ChannelDecayOptions
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs


@MIXERS.register("gated_deltanet_2")
class GatedDeltaNet2(ChannelDecayMixer):
    """Delta rule with a decay and an erase gate per key channel, and a write gate per value channel."""

    display_name = "Gated DeltaNet-2"
    Options = ChannelDecayOptions

    def _build_parameters(self) -> None:
        super()._build_parameters()
        hidden_size, heads = self.attention_shape.hidden_size, self.num_heads
        self.b_proj = nn.Linear(hidden_size, heads * self.head_k_dim, bias=False)
        self.w_proj = nn.Linear(hidden_size, heads * self.head_v_dim, bias=False)

    def joint_projections(self) -> list[nn.Module]:
        return [*super().joint_projections(), self.b_proj, self.w_proj]

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        log_decay = self.log_decay(x)
        erase = delta_beta(self.split_heads(self.b_proj(x)), self.options.negative_eigenvalues)
        write = torch.sigmoid(self.w_proj(x)).unflatten(-1, (self.num_heads, -1))
        # The recurrence reads the state before its decay.
        read = erase * upcast_fp32(inputs.k) * log_decay.exp()
        return replace(inputs, v=write * inputs.v, log_decay=log_decay, erase=Erase(read))

"""Comba: S_t = (α_t − b β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ and o_t = S_tᵀ (q_t − d k_t), a delta rule that
reads the state before its decay, with a feedback b and an output correction d per head (arXiv 2506.02475).

fla's layer normalizes p = b k and q − d p after these products, which cancels b in the recurrence; here
queries and keys are normalized first. fla's `naive_recurrent_comba` reads the decayed state, other than its
kernels and the paper.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, init_decay_
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import DELTA_NATIVE
from evalsuite.models.ops.gates import PerHeadLinear, delta_gates
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class CombaOptions(DecayOptions):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's Comba, with the order of norms above.
        "native": {**DELTA_NATIVE, "output_gate": "sigmoid", "decay_init": "native"},
    }
    output_correction: Literal["learned", "none"] = "learned"
    """d: share of the key that is taken from the query; starts at 0, or at 1 with `decay_init: native`."""


@MIXERS.register("comba")
class Comba(RecurrentMixer):
    """Scalar decay minus a rank-one matrix, with feedback from state and output."""

    display_name = "Comba"
    Options = CombaOptions
    options: CombaOptions
    uses_delta_rule = True

    def _build_parameters(self) -> None:
        self.b_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads, bias=False)
        # fla keeps the bias of a_proj as a separate parameter, dt_bias, and the logit of b as `decay`.
        self.a_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.feedback = nn.Parameter(torch.empty(self.num_heads))
        if self.options.output_correction == "learned":
            self.D = nn.Parameter(torch.empty(self.num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init_decay_(self.A_log, self.a_proj, self.options)
        init.ones_(self.feedback)
        if self.options.output_correction == "learned":
            init.constant_(self.D, 1.0 if self.options.decay_init == "native" else 0.0)

    def joint_projections(self) -> list[nn.Module]:
        return [*super().joint_projections(), self.a_proj, self.b_proj]

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        q, k = inputs.q, inputs.k
        log_decay, beta = delta_gates(x, self.a_proj, self.b_proj, self.A_log, 1.0)
        read = upcast_fp32(k) * torch.sigmoid(upcast_fp32(self.feedback)).unsqueeze(-1)
        if self.options.output_correction == "learned":
            q = q - self.D.to(q.dtype).unsqueeze(-1) * k
        return replace(
            inputs,
            q=q,
            k=k * beta.to(k.dtype).unsqueeze(-1),
            log_decay=log_decay,
            erase=Erase(read),
        )

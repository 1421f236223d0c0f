"""DeltaNet: S_t = (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ (arXiv 2406.06484, Eq. 3)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.gated_deltanet import DeltaOptions, delta_beta
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import DELTA_NATIVE
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class DeltaNetOptions(DeltaOptions):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's DeltaNet, whose default has no output gate.
        "native": {**DELTA_NATIVE, "output_gate": "none"},
    }


@MIXERS.register("deltanet")
class DeltaNet(RecurrentMixer):
    """Delta rule without decay: each write replaces the value stored under its key."""

    display_name = "DeltaNet"
    Options = DeltaNetOptions
    options: DeltaNetOptions
    uses_delta_rule = True

    def _build_parameters(self) -> None:
        self.b_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads, bias=False)

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        return replace(inputs, beta=delta_beta(self.b_proj(x), self.options.negative_eigenvalues))

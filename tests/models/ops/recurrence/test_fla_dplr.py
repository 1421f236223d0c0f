"""fla's kernel of the generalized delta rule against the torch backend on a GPU: outputs and gradients.

S_t = (Diag(e^gk) + b aᵀ) S_{t-1} + k vᵀ in `chunk_dplr_delta_rule`, so that its a is minus ours and its b is
what is removed along. The dispatcher may choose the kernel for `RecurrenceInputs.erase` once this passes.
"""

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from evalsuite.models.ops.recurrence import RecurrenceInputs
from evalsuite.models.ops.recurrence.fla_backend import broadcast_decay
from evalsuite.models.ops.recurrence.inputs import DecayShape
from tests.parity.kernel_accuracy import MAX_ERROR, draw_case, exact_float32, relative_errors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("fla")


def dplr(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """The recurrence on fla's kernel."""
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule

    erase, dtype = inputs.erase, inputs.v.dtype
    assert erase is not None
    along = inputs.k if erase.along is None else erase.along
    return chunk_dplr_delta_rule(
        inputs.q,
        inputs.k,
        inputs.v,
        -erase.read.to(dtype),
        along.to(dtype),
        broadcast_decay(inputs.log_decay, "channel", inputs.k),
        scale=inputs.scale,
        initial_state=inputs.initial_state,
        output_final_state=True,
        cu_seqlens=inputs.cu_seqlens,
    )


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize(("length", "packed"), itertools.product([2048, 63], [False, True]))
@pytest.mark.parametrize("rule", ["generalized", "two keys"])
@pytest.mark.parametrize("decay", ["none", "scalar", "channel"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dplr_matches_torch(
    monkeypatch: pytest.MonkeyPatch,
    decay: DecayShape,
    rule: str,
    dtype: torch.dtype,
    length: int,
    packed: bool,
) -> None:
    exact_float32(monkeypatch)
    draw = partial(draw_case, decay, rule, dtype=dtype, width=64)
    errors = relative_errors(dplr, *draw(length=length, packed=packed, device="cuda"))
    assert max(errors.values()) <= MAX_ERROR[dtype], errors

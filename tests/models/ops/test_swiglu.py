"""SwiGLU, alone and before a projection, its gradients, and parts of joined projections.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest
import torch
from torch.nn import functional

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16][: 2 if INTERPRETED else None]


@pytest.mark.parametrize("with_bias", [True, False])
def test_swiglu(with_bias: bool) -> None:
    from evalsuite.models.ops.swiglu import swiglu as op
    from evalsuite.models.ops.swiglu.training import swiglu, swiglu_linear

    gate, x, weight, bias = 3 * draw(2, 37, 96), draw(2, 37, 96), draw(24, 96), draw(24)
    with torch.no_grad():
        torch.testing.assert_close(swiglu(gate.mT, x.mT), op.reference(gate.mT, x.mT))
    compare(lambda g, x: [swiglu(g, x)], lambda g, x: [op.reference(g, x)], gate, x)
    biases = [bias] if with_bias else []
    compare(
        lambda g, x, w, *b: [swiglu_linear(g, x, w, b[0] if b else None)],
        lambda g, x, w, *b: [functional.linear(op.reference(g, x), w, b[0] if b else None)],
        gate,
        x,
        weight,
        *biases,
    )


@pytest.mark.parametrize("width", [7, 80, 576] + [1536] * (not INTERPRETED))
@pytest.mark.parametrize("shape", [(3, 1), (2, 45), (1, 1, 9)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_values(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    from evalsuite.models.ops.swiglu import swiglu as op
    from evalsuite.models.ops.swiglu.inference import swiglu

    torch.manual_seed(0)
    joined = (torch.randn(*shape, 2 * width + 16, device=DEVICE) * 3).to(dtype)
    tolerance = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    both = joined[..., :width], joined[..., width : 2 * width]
    # Parts of one projection; one of them in rows of its own; transposed, so that it has to be copied.
    for gate, x in (both, (both[0], both[1].contiguous()), (both[0].mT.contiguous().mT, both[1])):
        found = swiglu(gate, x)
        assert found.is_contiguous()
        expected = op.reference(gate.double(), x.double())
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    assert joined.isfinite().all()

"""Gated linear units, alone and before a projection, its gradients, and parts of joined projections.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from functools import partial
from typing import get_args

import pytest
import torch
from torch.nn import functional

from evalsuite.models.ops.glu import Activation
from evalsuite.models.ops.glu import glu as op
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16][: 2 if INTERPRETED else None]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("activation", get_args(Activation))
def test_gradients(activation: Activation, with_bias: bool) -> None:
    from evalsuite.models.ops.glu.training import glu, glu_linear

    exact = partial(op.reference, activation=activation)
    gate, x, weight, bias = 3 * draw(2, 37, 96), draw(2, 37, 96), draw(24, 96), draw(24)
    with torch.no_grad():
        torch.testing.assert_close(glu(gate.mT, x.mT, activation), exact(gate.mT, x.mT))
    compare(lambda g, x: [glu(g, x, activation)], lambda g, x: [exact(g, x)], gate, x)
    biases = [bias] if with_bias else []
    compare(
        lambda g, x, w, *b: [glu_linear(g, x, w, b[0] if b else None, activation)],
        lambda g, x, w, *b: [functional.linear(exact(g, x), w, b[0] if b else None)],
        gate,
        x,
        weight,
        *biases,
    )


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("width", [7, 80, 576] + [1536] * (not INTERPRETED))
@pytest.mark.parametrize("shape", [(3, 1), (2, 45), (1, 1, 9)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_values(shape: tuple[int, ...], width: int, dtype: torch.dtype, activation: Activation) -> None:
    from evalsuite.models.ops.glu.inference import glu

    torch.manual_seed(0)
    joined = (torch.randn(*shape, 2 * width + 16, device=DEVICE) * 3).to(dtype)
    tolerance = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    both = joined[..., :width], joined[..., width : 2 * width]
    # Parts of one projection; one of them in rows of its own; transposed, so that it has to be copied.
    for gate, x in (both, (both[0], both[1].contiguous()), (both[0].mT.contiguous().mT, both[1])):
        found = glu(gate, x, activation)
        assert found.is_contiguous()
        expected = op.reference(gate.double(), x.double(), activation)
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    assert joined.isfinite().all()

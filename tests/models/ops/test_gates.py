"""Gates of recurrent mixers.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from functools import partial

import pytest
import torch
from torch.nn import functional

from tests.models.ops.device import DEVICE, NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]


def test_gla_gate_nearly_open_and_nearly_closed() -> None:
    from evalsuite.models.ops.gates import gla_gate_and_scale as op
    from evalsuite.models.ops.gates.training import gla_gate_and_scale

    logits = torch.cat([2 * draw(500), torch.linspace(-20, 20, 500, device=DEVICE)]).view(1, 100, 2, 5)
    exact = partial(op.reference, temperature=16.0)
    compare(lambda z, k: gla_gate_and_scale(z, k, 16.0), exact, logits, draw(*logits.shape))


@pytest.mark.parametrize("most", [1.0, 2.0])
def test_gates_of_the_delta_rule(most: float) -> None:
    from evalsuite.models.ops.gates.inference import gates_of_logits

    torch.manual_seed(0)
    # Rows lie apart, as those of a projection that was padded.
    a, b = torch.randn(2, 3, 50, 16, device=DEVICE)[..., :9] * 20
    bias, rate = torch.randn(2, 9, device=DEVICE)
    log_decay, beta = gates_of_logits(a, b, bias, rate, most)
    expected = -rate.double().exp() * functional.softplus((a + bias).double(), threshold=1000)
    torch.testing.assert_close(log_decay.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(beta, most * b.sigmoid(), rtol=1e-5, atol=1e-12)

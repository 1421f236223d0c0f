"""The mixers' Triton kernels compute what torch computes, forward and backward (on a CUDA device)."""

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def compare(fast, exact, *leaves: torch.Tensor) -> None:
    """Outputs and gradients of two functions of the same leaves: fp32 against float64."""
    found = []
    for function, dtype in ((fast, torch.float32), (exact, torch.float64)):
        own = [leaf.to(dtype, copy=True).requires_grad_() for leaf in leaves]
        outputs = function(*own)
        torch.manual_seed(0)
        # By shape: randn_like would draw a transposed output's weights in another order.
        sum((out * torch.randn(out.shape, device="cuda")).sum() for out in outputs).backward()
        found.append([*(out.detach().double() for out in outputs), *(leaf.grad.double() for leaf in own)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_rotary():
    from evalsuite.models.mixers.kernels import rotary
    from evalsuite.models.mixers.parts import rotate

    angles = draw(1, 70, 32)
    cosine, sine = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    compare(
        lambda x: [rotary(x, cosine, sine)],
        lambda x: [rotate(x, cosine.double(), sine.double())],
        draw(2, 70, 9, 64),
    )


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", [(2, 70, 576), (1, 5, 24), (3, 64, 192)])
def test_convolution(silu, shape):
    from evalsuite.models.mixers.kernels import convolution

    def exact(x, weight):
        padded = functional.pad(x.transpose(1, 2), [3, 0])
        y = functional.conv1d(padded, weight[:, None], groups=weight.shape[0]).transpose(1, 2)
        return [functional.silu(y) if silu else y]

    compare(lambda x, w: [convolution(x, w, silu=silu)], exact, draw(*shape), draw(shape[-1], 4))


def test_gates_that_are_nearly_open_and_nearly_closed():
    from evalsuite.models.mixers.kernels import gated_writes
    from evalsuite.models.mixers.parts import write_size

    def exact(logits, k):
        log_decay = functional.logsigmoid(logits) / 16
        return log_decay, k * write_size(log_decay)

    logits = torch.cat([2 * draw(500), torch.linspace(-20, 20, 500, device="cuda")]).view(1, 100, 2, 5)
    compare(lambda z, k: gated_writes(z, k, 16.0), exact, logits, draw(*logits.shape))

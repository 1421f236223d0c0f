"""Each Triton kernel computes what torch computes, forward and backward.

Runs on a CUDA device, or on a CPU under Triton's interpreter if TRITON_INTERPRET=1 (see test_interpreter.py).
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops import reference
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.fixture(autouse=True)
def seeded() -> None:
    from evalsuite.models.ops import tuning

    if tuning.active() is None:
        tuning.install()
    torch.manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def compare(fast: Callable, exact: Callable, *leaves: Tensor) -> None:
    """Outputs and gradients of two functions of the same leaves: fp32 against float64."""
    found = []
    for function, dtype in ((fast, torch.float32), (exact, torch.float64)):
        own = [leaf.to(dtype, copy=True).requires_grad_() for leaf in leaves]
        outputs: Sequence[Tensor] = function(*own)
        torch.manual_seed(0)
        # By shape: randn_like would draw a transposed output's weights in another order.
        sum((out * torch.randn(out.shape, device=DEVICE)).sum() for out in outputs).backward()
        found.append([*(out.detach().double() for out in outputs), *(leaf.grad.double() for leaf in own)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_rotary() -> None:
    from evalsuite.models.ops.rotary import rotary

    angles = draw(1, 70, 32)
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    compare(
        lambda x: [rotary(x, cos, sin)],
        lambda x: [reference.rotary(x, cos.double(), sin.double())],
        draw(2, 70, 9, 64),
    )


CONVOLUTIONS = [(2, 70, 576), (1, 5, 24), (3, 64, 192)]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
@pytest.mark.skipif(INTERPRETED, reason="the forward kernel is fla's")
def test_short_conv(silu: bool, shape: tuple[int, ...]) -> None:
    from evalsuite.models.ops.short_conv import short_conv

    compare(
        lambda x, w: [short_conv(x, w, silu=silu)],
        lambda x, w: [reference.short_conv(x, w, silu=silu)],
        draw(*shape),
        draw(shape[-1], 4),
    )


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_short_conv_backward(silu: bool, shape: tuple[int, ...]) -> None:
    from evalsuite.models.ops.short_conv import short_conv_backward

    x, weight, d_y = draw(*shape), draw(shape[-1], 4), draw(*shape)
    exact = [leaf.double().requires_grad_() for leaf in (x, weight)]
    expected = torch.autograd.grad(reference.short_conv(*exact, silu=silu), exact, d_y.double())
    for found, wanted in zip(short_conv_backward(x, weight, d_y, silu=silu), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_bias", [True, False])
def test_swiglu(with_bias: bool) -> None:
    from evalsuite.models.ops.swiglu import swiglu, swiglu_linear

    gate, x, weight, bias = 3 * draw(2, 37, 96), draw(2, 37, 96), draw(24, 96), draw(24)
    with torch.no_grad():
        torch.testing.assert_close(swiglu(gate.mT, x.mT), reference.swiglu(gate.mT, x.mT))
    compare(lambda g, x: [swiglu(g, x)], lambda g, x: [reference.swiglu(g, x)], gate, x)
    biases = [bias] if with_bias else []
    compare(
        lambda g, x, w, *b: [swiglu_linear(g, x, w, b[0] if b else None)],
        lambda g, x, w, *b: [functional.linear(reference.swiglu(g, x), w, b[0] if b else None)],
        gate,
        x,
        weight,
        *biases,
    )


def test_gla_gate_nearly_open_and_nearly_closed() -> None:
    from evalsuite.models.ops.gla_gate import gla_gate_and_scale

    logits = torch.cat([2 * draw(500), torch.linspace(-20, 20, 500, device=DEVICE)]).view(1, 100, 2, 5)
    exact = partial(reference.gla_gate_and_scale, temperature=16.0)
    compare(lambda z, k: gla_gate_and_scale(z, k, 16.0), exact, logits, draw(*logits.shape))


@pytest.mark.parametrize("width", [64, 576, 4096])
def test_rms_norm_with_and_without_a_residual(width: int) -> None:
    from evalsuite.models.ops.rms_norm import rms_norm

    rows = 11 if INTERPRETED else 501
    x, weight, residual = draw(3, rows, width), draw(width), draw(3, rows, width)
    exact = partial(reference.rms_norm, eps=1e-5)
    compare(lambda x, w: rms_norm(x, w, 1e-5), exact, x, weight)
    compare(
        lambda x, w, r: rms_norm(x, w, 1e-5, r), lambda x, w, r: exact(x, w, residual=r), x, weight, residual
    )


def test_squared_distance() -> None:
    from evalsuite.models.ops.hidden_distance import squared_distance

    teacher = draw(2, 77, 576)
    compare(
        lambda s: [squared_distance(s, teacher)[0] / squared_distance(s, teacher)[1]],
        lambda s: [reference.squared_distance(s, teacher)[0] / reference.squared_distance(s, teacher)[1]],
        draw(2, 77, 576),
    )


@pytest.mark.parametrize(("ce", "kl", "temperature"), [(0, 1, 1.0), (0, 1, 2.5), (1, 0, 1.0), (0.5, 2, 1.0)])
@pytest.mark.parametrize("vocabulary", [1000, 49152])
def test_row_losses(ce: float, kl: float, temperature: float, vocabulary: int) -> None:
    from evalsuite.models.ops.distill_loss import row_losses

    rows = 2 if INTERPRETED else 64
    logits, teacher = 3 * draw(rows, vocabulary), 3 * draw(rows, vocabulary)
    labels = torch.randint(0, vocabulary, (rows,), device=DEVICE)
    labels[0] = -1
    weights = torch.rand(rows, device=DEVICE)
    exact = logits.double().requires_grad_()
    log_student = (exact / temperature).log_softmax(-1)
    log_teacher = (teacher.double() / temperature).log_softmax(-1)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(-1)
    rows_ce = functional.cross_entropy(exact, labels, reduction="none", ignore_index=-1)
    expected_ce = (rows_ce * weights).sum()
    expected_kl = (divergence * weights).sum() * temperature**2
    (ce * expected_ce + kl * expected_kl).backward()
    found_ce, found_kl = row_losses(logits, teacher, labels, weights, ce=ce, kl=kl, temperature=temperature)
    assert exact.grad is not None
    pairs = [(logits, exact.grad)]
    pairs += [(found_ce, expected_ce)] if ce else []
    pairs += [(found_kl, expected_kl)] if kl else []
    for found, wanted in pairs:
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-3, atol=1e-5)

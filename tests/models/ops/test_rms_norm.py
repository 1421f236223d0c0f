"""Norms: of rows and their gradients, of sums, of heads.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from functools import partial
from typing import get_args

import pytest
import torch

from evalsuite.models.ops.dispatch import kernel_policy
from evalsuite.models.ops.rms_norm import Gain, sandwich_norm
from evalsuite.models.ops.rms_norm import rms_norm as op
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16][: 2 if INTERPRETED else None]


@pytest.mark.parametrize("gain", get_args(Gain))
@pytest.mark.parametrize("width", [64, 576, 4096])
def test_rms_norm_with_and_without_a_residual(width: int, gain: Gain) -> None:
    from evalsuite.models.ops.rms_norm.training import rms_norm

    rows = 11 if INTERPRETED else 501
    x, weight, residual = draw(3, rows, width), draw(width), draw(3, rows, width)
    exact = partial(op.reference, eps=1e-5, gain=gain)
    compare(lambda x, w: rms_norm(x, w, 1e-5, None, gain), exact, x, weight)
    compare(
        lambda x, w, r: rms_norm(x, w, 1e-5, r, gain),
        lambda x, w, r: exact(x, w, residual=r),
        x,
        weight,
        residual,
    )


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("width", [96, 640])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gain", get_args(Gain))
def test_a_gain_is_rounded_where_the_family_rounds_it(
    gain: Gain, training: bool, width: int, summed: bool
) -> None:
    """In half precision each gain gives other numbers; nearly all are the reference's own."""
    half = torch.float16 if INTERPRETED else torch.bfloat16
    x, weight = draw(3, 40, width).to(half), draw(width).to(half)
    residual = draw(3, 40, width).to(half) if summed else None
    found = op.load("training" if training else "inference")(x, weight, 1e-5, residual, gain)[0]
    right = {each: op.reference(x, weight, 1e-5, residual, each)[0] for each in get_args(Gain)}
    equal = {each: float((found == value).float().mean()) for each, value in right.items()}
    assert max(equal, key=lambda each: equal[each]) == gain
    assert equal[gain] > 0.99


@pytest.mark.parametrize("width", [48, 72] + [576, 4096] * (not INTERPRETED))
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_a_sum(width: int, dtype: torch.dtype) -> None:
    from evalsuite.models.ops.rms_norm.inference import add_norm

    torch.manual_seed(0)
    # More rows than one program computes, and not a multiple of them; sums that rounding changes.
    x, residual = (
        torch.randn(2, 3, 43, width, device=DEVICE) * torch.tensor([8, 0.1]).view(2, 1, 1, 1).to(DEVICE)
    ).to(dtype)
    weight = torch.randn(width, device=DEVICE).to(dtype)
    before = residual.clone()
    normed, total = add_norm(x.transpose(0, 1), residual.transpose(0, 1), weight, 1e-5)
    expected, sums = op.reference(x, weight, 1e-5, residual)
    assert torch.equal(total.transpose(0, 1), sums)
    tolerance = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    torch.testing.assert_close(normed.transpose(0, 1), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("gain", get_args(Gain))
@pytest.mark.parametrize("dtype", DTYPES)
def test_sandwich_norm(dtype: torch.dtype, gain: Gain, followed: bool) -> None:
    """Nearly all numbers are those of separate norms, which round between them."""
    from evalsuite.models.ops.rms_norm.inference import sandwich_norm as found

    torch.manual_seed(0)
    width = 72 if INTERPRETED else 640
    x, residual, weight, following = (
        draw(*shape).to(dtype) for shape in [(3, 41, width)] * 2 + [(width,)] * 2
    )
    x = (8 * x).transpose(0, 1)
    before = residual.clone()
    given = weight, 1e-5, residual.transpose(0, 1), following if followed else None, gain
    tolerance = {torch.float32: 1e-5, torch.float16: 2**-7, torch.bfloat16: 2**-4}[dtype]
    with kernel_policy("torch"):
        right = sandwich_norm.reference(x, *given)
    for mine, expected in zip(found(x, *given), right, strict=True):
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)
        if dtype != torch.float32:
            assert (mine == expected).float().mean() > 0.98
    assert torch.equal(residual, before)


@pytest.mark.parametrize(
    ("width", "dtype", "weighted"),
    [
        (16, torch.float32, False),
        (64, torch.float16, True),
        (80, torch.float16, False),
        (256, torch.float32, True),
    ],
)
def test_norms_of_heads(width: int, dtype: torch.dtype, weighted: bool) -> None:
    from evalsuite.models.ops.rms_norm.inference import head_norms

    torch.manual_seed(0)
    # More rows than one program computes, and not a multiple of them.
    x = (torch.randn(3, 7, 5, width, device=DEVICE) * 3).to(dtype)
    weights = [torch.randn(width, device=DEVICE).to(dtype) for _ in range(2)] if weighted else None
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    exact = exact * (0.125 if weights is None else weights[0].double())
    found = head_norms([x], weights and weights[:1], 1e-6, 0.125)[0]
    tolerance = 2**-9 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=1e-6)
    # Two of different sizes together, the smaller one in any place.
    for parts in ((x, x[:1, :, 1:3]), (x[:, :1], x)):
        alone = [
            head_norms([part], weights and weights[i : i + 1], 1e-6, 0.125)[0] for i, part in enumerate(parts)
        ]
        for mine, theirs in zip(head_norms(parts, weights, 1e-6, 0.125), alone, strict=True):
            assert torch.equal(mine, theirs)


def test_l2_norms_of_two_tensors_equal_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.models.ops.rms_norm import inference, l2_norm

    calls, right = [], inference.head_norms
    monkeypatch.setattr(inference, "head_norms", lambda *given: calls.append(len(given[0])) or right(*given))
    q, k, narrow = (torch.randn(2, 3, 2, width, device=DEVICE) for width in (8, 8, 6))
    for other, launches in ((k, [2]), (narrow, [1, 1])):
        calls.clear()
        for mine, exact in zip(inference.l2_norm(q, other), l2_norm.reference(q, other), strict=True):
            torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5)
        assert calls == launches

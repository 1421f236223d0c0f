"""Short convolutions, their gradients, and their states.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest
import torch

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]


CONVOLUTIONS = [(2, 70, 576), (1, 5, 24), (3, 64, 192)]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
@pytest.mark.skipif(INTERPRETED, reason="the forward kernel is fla's")
def test_short_conv(silu: bool, shape: tuple[int, ...]) -> None:
    from evalsuite.models.ops.short_conv import short_convolutions as op
    from evalsuite.models.ops.short_conv.training import short_convolutions

    compare(
        lambda x, w: short_convolutions([x], [w], int(silu))[0],
        lambda x, w: op.reference([x], [w], int(silu))[0],
        draw(*shape),
        draw(shape[-1], 4),
    )


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_short_conv_backward(silu: bool, shape: tuple[int, ...]) -> None:
    from evalsuite.models.ops.short_conv import short_convolutions
    from evalsuite.models.ops.short_conv.backward import short_conv_backward

    x, weight, d_y = draw(*shape), draw(shape[-1], 4), draw(*shape)
    exact = [leaf.double().requires_grad_() for leaf in (x, weight)]
    (y,), _ = short_convolutions.reference(exact[:1], exact[1:], int(silu))
    expected = torch.autograd.grad(y, exact, d_y.double())
    for found, wanted in zip(short_conv_backward(x, weight, d_y, silu=silu), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("length", "taps", "widths", "activated"),
    [(1, 4, (80, 16, 70), 2), (2, 4, (48,), 0), (37, 2, (80, 80), 2)]
    + [(300, 4, (64, 32, 192), 3)] * (not INTERPRETED),
)
@pytest.mark.parametrize("case", ["start", "continued", "right pads", "left pads"])
def test_convolutions_and_their_states(
    length: int, taps: int, widths: tuple[int, ...], activated: int, case: str
) -> None:
    from evalsuite.models.ops.recurrence import StateAccess
    from evalsuite.models.ops.short_conv import short_convolutions as op
    from evalsuite.models.ops.short_conv.inference import short_convolutions

    torch.manual_seed(0)
    rows, channels = 4, sum(widths)
    x = torch.randn(rows, length, channels, device=DEVICE)
    weight = torch.randn(channels, taps, device=DEVICE)
    state = torch.randn(rows, channels, taps - 1, device=DEVICE) if case == "continued" else None
    token_mask = None
    if "pads" in case:
        real = torch.tensor([length, length // 2, 1, 0], device=DEVICE)[:, None]
        token_mask = torch.arange(length, device=DEVICE) < real
        token_mask = token_mask.flip(1) if case == "left pads" else token_mask
    # Parts of a projection that has others, too, and of tensors of their own.
    joined = torch.cat([x, torch.full_like(x[..., :5], torch.nan)], -1)
    parts = joined[..., :channels].split(widths, -1), weight.split(widths)
    found, after = short_convolutions(*parts, activated, state, token_mask)
    apart = [each.contiguous() for each in parts[0]]
    again, _ = short_convolutions(apart, parts[1], activated, state, token_mask)
    for mine, theirs in zip(found, again, strict=True):
        assert torch.equal(mine, theirs)
    expected, last = op.reference(*parts, activated, state, token_mask)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, last)
    if state is not None:
        again, other = short_convolutions(*parts, activated, state.mT.contiguous().mT)
        assert torch.equal(torch.cat(list(again), -1), torch.cat(list(found), -1))
        assert torch.equal(other, after)
    if state is not None and length == 1:
        pages = torch.randn(6, state[0].numel() + 5, device=DEVICE)
        stored, slots = pages[:, 2:-3].view(6, *state.shape[1:]), torch.tensor([5, 0, 3, 1], device=DEVICE)
        stored[slots] = state
        others = pages.clone()
        again, _ = short_convolutions(*parts, activated, stored, access=StateAccess(slots))
        assert torch.equal(torch.cat(list(again), -1), torch.cat(list(found), -1))
        assert torch.equal(stored[slots], after)
        stored[slots] = state
        assert torch.equal(pages, others)
        again, _ = short_convolutions(*parts, activated, state, access=StateAccess(in_place=True))
        assert torch.equal(torch.cat(list(again), -1), torch.cat(list(found), -1))
        assert torch.equal(state, after)

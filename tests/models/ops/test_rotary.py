"""Rotary position embedding, its gradient, and its rounding.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest
import torch

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]


def test_rotary() -> None:
    from evalsuite.models.ops.rotary import rotary as op
    from evalsuite.models.ops.rotary.training import rotary

    angles = draw(1, 70, 32)
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    compare(
        lambda x: [rotary(x, cos, sin)],
        lambda x: [op.reference(x, cos.double(), sin.double())],
        draw(2, 70, 9, 64),
    )


@pytest.mark.parametrize(
    ("rows", "length", "heads", "width", "angles"),
    [
        (3, 1, 9, 64, "of each row"),
        (2, 5, 3, 48, "of each row"),
        (2, 5, 2, 16, "the same"),
        (3, 2, 4, 8, "expanded"),
        (1, 3, 70, 64, "in float32"),
        (2, 3, 2, 16, "transposed"),
    ]
    + [(4, 300, 9, 64, "of each row"), (2, 33, 70, 256, "the same")] * (not INTERPRETED),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rotary_rounds_as_separate_operations_do(
    rows: int, length: int, heads: int, width: int, angles: str, dtype: torch.dtype
) -> None:
    from evalsuite.models.ops.rotary import rotary as op
    from evalsuite.models.ops.rotary.inference import rotary

    torch.manual_seed(0)
    # Some channels of the heads of one of two joined projections.
    joined = torch.randn(rows, length, 2 * heads, width + 8, device=DEVICE).to(dtype)
    x = joined[:, :, heads:, :width]
    cos, sin = torch.randn(2, rows if angles == "of each row" else 1, length, width, device=DEVICE).to(
        torch.float32 if angles == "in float32" else dtype
    )
    if angles == "expanded":
        cos = cos.expand(rows, -1, -1)
    elif angles == "transposed":
        x, cos, sin = (each.mT.contiguous().mT for each in (x, cos, sin))
    # The interpreter truncates to bfloat16.
    tolerance = 2**-6 if INTERPRETED and dtype == torch.bfloat16 else 0.0
    found, expected = rotary(x, cos, sin), op.reference(x, cos, sin)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=2 * tolerance)


def test_a_part_of_the_channels_is_rotated_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.models.ops.rotary import inference, rotary

    monkeypatch.setattr(rotary, "proven", lambda *_: True)
    if INTERPRETED:
        monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
    calls, right = [], inference.rotary
    monkeypatch.setattr(inference, "rotary", lambda *given: calls.append(1) or right(*given))
    x, angles = torch.randn(2, 3, 4, 12, device=DEVICE), torch.randn(2, 3, 4, device=DEVICE).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    expected = torch.cat([rotary.reference(x[..., :8], cos, sin), x[..., 8:]], -1)
    for graph, count in ((torch.enable_grad(), 0), (torch.no_grad(), 1)):
        with graph:
            torch.testing.assert_close(rotary(x, cos, sin), expected)
        assert len(calls) == count

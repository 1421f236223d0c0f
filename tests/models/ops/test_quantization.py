"""Rounding to low-precision formats: grids, error bounds, zeros, and numbers that are not finite."""

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.quantization import FORMATS, quantize_dequantize


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, shape[-1])


@pytest.mark.parametrize(
    ("kind", "x", "rounded"),
    [
        ("int8", [127.0, -1.4, 0.5, 1.5, 0.0], [127.0, -1.0, 0.0, 2.0, 0.0]),
        ("fp8", [448.0, 17.0, -0.3, 2.0**-9, 2.0**-11], [448.0, 16.0, -0.3125, 2.0**-9, 0.0]),
        ("bf16", [1.0, 1.0 + 2.0**-9, -(1.0 + 2.0**-7), 3e38], [1.0, 1.0, -(1.0 + 2.0**-7), 3e38]),
    ],
)
def test_closed_forms(kind: str, x: list[float], rounded: list[float]) -> None:
    tolerance = 2.0**-8 if kind == "bf16" else 0
    torch.testing.assert_close(
        quantize_dequantize(torch.tensor(x), kind), torch.tensor(rounded), rtol=tolerance, atol=0
    )


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_error_is_at_most_half_a_step(kind: str, dim: int) -> None:
    x = draw(6, 5, 32)
    rounded, largest = quantize_dequantize(x, kind, dim), x.abs().amax(dim, keepdim=True)
    bound = {
        "int8": largest / 254,
        "fp8": torch.maximum(x.abs() / 16, largest / 448 * 2.0**-10),
        "bf16": x.abs() / 256,
    }[kind]
    assert bool(((rounded - x).abs() <= bound * (1 + 1e-5)).all())
    assert not torch.equal(rounded, x)


@pytest.mark.parametrize("kind", FORMATS)
def test_rounding_again_changes_nothing_and_signs_are_symmetric(kind: str) -> None:
    once = quantize_dequantize(draw(7, 40), kind)
    torch.testing.assert_close(quantize_dequantize(once, kind), once, rtol=1e-6, atol=0)
    assert torch.equal(quantize_dequantize(-draw(7, 40), kind), -once)


@pytest.mark.parametrize("kind", FORMATS)
def test_zeros_dtype_and_tiny_numbers(kind: str) -> None:
    assert torch.equal(quantize_dequantize(torch.zeros(3, 4), kind), torch.zeros(3, 4))
    assert bool(quantize_dequantize(torch.full((2, 3), 1e-44), kind).isfinite().all())
    assert quantize_dequantize(draw(2, 3).half(), kind).dtype == torch.float16


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_so_without_harm_to_other_rows(kind: str, bad: float) -> None:
    x = draw(2, 4)
    x[0, 1] = bad
    rounded = quantize_dequantize(x, kind)
    assert not bool(rounded[0, 1].isfinite())
    assert torch.equal(rounded[1], quantize_dequantize(draw(2, 4), kind)[1])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="kind = 'int4': must be one of int8, fp8, bf16"):
        quantize_dequantize(torch.ones(2), "int4")

"""Rounding to a few bits: closed forms, error bounds, and what of a model is rounded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.diagnostics.quantization import BITS, largest_level, quantized, round_to_nearest


def test_largest_levels() -> None:
    assert [largest_level(bits) for bits in BITS] == [127, 31, 15, 7, 3, 1]


@pytest.mark.parametrize("bits", [1, 0, 17])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match=f"bits = {bits}"):
        round_to_nearest(torch.ones(1, 4), bits)


def test_a_block_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="block = 0"):
        round_to_nearest(torch.ones(1, 4), 4, block=0)


def test_closed_form() -> None:
    weight = torch.tensor([[3.0, -1.4, 0.4, 0.6], [-6.0, 2.9, 3.1, 1.0]])
    three_bits = torch.tensor([[3.0, -1.0, 0.0, 1.0], [-6.0, 2.0, 4.0, 0.0]])
    two_bits = torch.tensor([[3.0, 0.0, 0.0, 0.0], [-6.0, 0.0, 6.0, 0.0]])
    assert torch.equal(round_to_nearest(weight, 3, block=4), three_bits)
    assert torch.equal(round_to_nearest(weight, 2, block=4), two_bits)


@pytest.mark.parametrize("bits", BITS)
def test_levels_and_error_bound(bits: int) -> None:
    weight = torch.randn(8, 192, generator=torch.Generator().manual_seed(0))
    rounded = round_to_nearest(weight, bits)
    blocks, found = weight.view(8, 3, 64), rounded.view(8, 3, 64)
    scale = blocks.abs().amax(-1, keepdim=True) / largest_level(bits)
    assert ((found - blocks).abs() <= scale / 2 * (1 + 1e-5)).all()
    levels = found / scale
    assert torch.allclose(levels, levels.round(), atol=1e-4)
    assert levels.abs().max() <= largest_level(bits) + 1e-4
    # The largest weight of a block is a level, up to the rounding of its scale.
    largest = blocks.abs().argmax(-1, keepdim=True)
    assert torch.allclose(found.gather(-1, largest), blocks.gather(-1, largest), rtol=1e-6)


def test_rounding_is_symmetric_and_idempotent() -> None:
    weight = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    rounded = round_to_nearest(weight, 4)
    assert torch.equal(round_to_nearest(-weight, 4), -rounded)
    assert torch.allclose(round_to_nearest(rounded, 4), rounded, rtol=1e-6)


def test_more_bits_are_nearer() -> None:
    weight = torch.randn(16, 256, generator=torch.Generator().manual_seed(2))
    errors = [float((round_to_nearest(weight, bits) - weight).norm()) for bits in BITS]
    assert errors == sorted(errors)


def test_the_last_block_may_be_shorter_and_blocks_run_along_the_inputs() -> None:
    weight = torch.randn(3, 100, generator=torch.Generator().manual_seed(3))
    rounded = round_to_nearest(weight, 4)
    assert torch.equal(rounded[:, 64:], round_to_nearest(weight[:, 64:], 4, block=36))
    assert torch.equal(rounded[1:2], round_to_nearest(weight[1:2], 4))


def test_zeros_stay_zero() -> None:
    weight = torch.zeros(2, 128)
    weight[0, 64] = 1.0
    assert torch.equal(round_to_nearest(weight, 2), weight)


def test_every_linear_layer_and_the_head_are_rounded_and_nothing_else(
    make_teacher: Callable[..., Any],
) -> None:
    model = make_teacher()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rounded = quantized(model, 3, block=16).state_dict()
    linear = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)
    }
    assert "lm_head.weight" in linear
    for name, value in before.items():
        expected = round_to_nearest(value, 3, block=16) if name in linear else value
        assert torch.equal(rounded[name], expected), name
        assert torch.equal(model.state_dict()[name], value), name


def test_a_tied_head_is_rounded_in_a_copy_of_its_own(make_teacher: Callable[..., Any]) -> None:
    model = make_teacher(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    embedding = model.model.embed_tokens.weight.detach().clone()
    rounded = quantized(model, 2)
    assert torch.equal(rounded.model.embed_tokens.weight, embedding)
    assert torch.equal(rounded.lm_head.weight, round_to_nearest(embedding, 2))
    assert rounded.config.tie_word_embeddings is False
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, embedding)


def test_dtype_is_kept(make_teacher: Callable[..., Any]) -> None:
    rounded = quantized(make_teacher().to(torch.bfloat16), 4)
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}

"""A teacher as our decoder gives the numbers of transformers to the last bit; its blocks can be observed."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.decoder.block import LayerActivations
from evalsuite.models.decoder.build import to_decoder
from evalsuite.models.decoder.cache import CACHE
from evalsuite.models.decoder.families import FAMILIES
from evalsuite.models.ops.glu import glu

Make = Callable[..., PreTrainedModel]
family = pytest.mark.parametrize("family", FAMILIES)
LENGTH = 14


def ids() -> Tensor:
    return torch.randint(0, 61, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def full(model: Any) -> Tensor:
    return model(ids()).logits


def padded(model: Any) -> Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    # Eager attention has its softmax in float32, where the mask of float64 overflows on a pad's row.
    return model(ids(), attention_mask=mask).logits[mask.bool()].nan_to_num()


def packed(model: Any) -> Tensor:
    positions = torch.cat([torch.arange(5), torch.arange(LENGTH - 5)])[None].expand(2, -1)
    return model(ids(), position_ids=positions, use_cache=False).logits


def cached(model: Any) -> Tensor:
    start = model(ids()[:, :9], use_cache=True)
    return model(ids()[:, 9:], **{CACHE: start[CACHE]}).logits


@family
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.no_grad()
def test_logits_equal_those_of_transformers(
    make_teacher: Make, family: str, implementation: str, dtype: torch.dtype
) -> None:
    teacher = make_teacher(family, layers=4).to(dtype)
    # sdpa has no soft cap.
    teacher.set_attn_implementation("eager" if family == "gemma2" else implementation)
    decoder: Any = to_decoder(copy.deepcopy(teacher))
    assert isinstance(decoder, StudentForCausalLM)
    for run in (full, padded, packed, cached):
        assert torch.equal(run(decoder), run(teacher)), run.__name__


@family
def test_modules_are_taken_over_and_saved_as_they_were(
    make_teacher: Make, family: str, tmp_path: Path
) -> None:
    teacher = make_teacher(family)
    names, parameters = list(teacher.state_dict()), list(teacher.parameters())
    decoder: Any = to_decoder(teacher)
    assert list(decoder.state_dict()) == names
    assert all(mine is theirs for mine, theirs in zip(decoder.parameters(), parameters, strict=True))
    assert decoder.config.is_teacher
    assert to_decoder(decoder) is decoder
    for folder, model in ((tmp_path / "theirs", teacher), (tmp_path / "ours", decoder)):
        model.save_pretrained(folder)
    files = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(teacher)
    assert not build_student(teacher, "softmax").config.is_teacher


@pytest.mark.parametrize("changes", [{"use_bidirectional_attention": True}])
def test_other_attention_is_left_to_transformers(make_teacher: Make, changes: dict[str, Any]) -> None:
    teacher = make_teacher("gemma3_text", **changes)
    assert to_decoder(teacher) is teacher


@family
@torch.no_grad()
def test_every_block_is_observed(make_teacher: Make, family: str) -> None:
    teacher = make_teacher(family)
    teacher.set_attn_implementation("eager")
    wanted = teacher(ids(), output_hidden_states=True, output_attentions=True)
    decoder: Any = to_decoder(teacher)
    found: list[LayerActivations] = []
    decoder(ids(), observe=lambda layer, activations: found.append(activations))
    for layer, (activations, block) in enumerate(zip(found, decoder.model.layers, strict=True)):
        assert torch.equal(activations.block_input, wanted.hidden_states[layer])
        assert torch.equal(activations.attention, wanted.attentions[layer])
        again = block(activations.block_input, activations.context)
        assert torch.equal(again, activations.block_output)
        given = block(activations.block_input, activations.context, normed=activations.input)
        assert torch.equal(given, activations.block_output)
        mixed, _ = block.mix(activations.input, activations.context)
        assert torch.equal(mixed, activations.output)
    assert torch.equal(decoder.model.norm(found[-1].block_output), wanted.hidden_states[-1])


@torch.no_grad()
def test_blocks_and_mixers_are_replaced_in_a_copy(make_teacher: Make) -> None:
    decoder: Any = to_decoder(make_teacher("llama"))
    other = build_student(decoder, "gla")
    before, linear = decoder(ids()).logits, other(ids()).logits
    mixer = other.model.layers[1].self_attn
    hybrid = decoder.with_blocks({1: decoder.model.layers[1].with_mixer(mixer)})
    assert hybrid.config.mixers == ["softmax", "gla"]
    assert hybrid.model.layers[1].mlp is decoder.model.layers[1].mlp
    wanted = build_student(decoder, ["softmax", "gla"])
    wanted.model.layers[1].self_attn.load_state_dict(mixer.state_dict())
    assert torch.equal(hybrid(ids()).logits, wanted(ids()).logits)
    assert torch.equal(decoder(ids()).logits, before)
    assert torch.equal(other.with_blocks(dict(enumerate(decoder.model.layers)))(ids()).logits, before)
    assert torch.equal(other(ids()).logits, linear)
    assert decoder.config.mixers == ["softmax"] * 2


def test_recomputed_activations_change_no_gradient(make_teacher: Make) -> None:
    decoder: Any = build_student(make_teacher("llama"), ["gla", "softmax"])

    def gradients() -> list[Tensor]:
        decoder.zero_grad()
        decoder(ids(), labels=ids()).loss.backward()
        return [parameter.grad.clone() for parameter in decoder.parameters()]

    wanted = gradients()
    for block in decoder.model.layers:
        block.recomputes = True
    assert all(torch.equal(*pair) for pair in zip(gradients(), wanted, strict=True))
    for block in decoder.model.layers:
        block.recomputes = False
    decoder.train().gradient_checkpointing_enable({"use_reentrant": False})
    assert all(torch.equal(*pair) for pair in zip(gradients(), wanted, strict=True))


@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm3"])
@torch.no_grad()
def test_the_last_product_adds_the_residual(
    make_teacher: Make, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels without gradients apply; not where activations are observed."""
    decoder: Any = to_decoder(make_teacher(family).bfloat16())
    wanted = decoder(ids()).logits
    monkeypatch.setattr(glu, "has_kernel", lambda *_: True)
    found = decoder(ids()).logits
    assert (found - wanted).norm() / wanted.norm() < 2e-2
    seen: list[LayerActivations] = []
    observed = decoder(ids(), observe=lambda layer, activations: seen.append(activations)).logits
    assert torch.equal(observed, wanted)
    assert all(not torch.equal(each.residual, each.block_output) for each in seen)

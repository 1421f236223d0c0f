"""A mixer on pages of int8 computes what it computes on tensors of its own."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from evalsuite.models import MIXERS, StudentForCausalLM
from evalsuite.models.cache import RecurrentSlot
from evalsuite.models.mixers import Mixer
from evalsuite.models.vllm_plugin.skeleton import largest_state, skeleton
from evalsuite.models.vllm_plugin.state import ALIGNMENT, PagedSlot, state_bytes, state_views

RECURRENT = sorted(name for name, kind in MIXERS.items() if issubclass(kind, Mixer))
SLOTS = 5


def pages_for(size: int) -> Tensor:
    """Pages that begin in the middle of a row of vLLM's cache, full of what an earlier owner left: NaN."""
    return torch.full((SLOTS, size + 64), -1, dtype=torch.int8)[:, 32 : 32 + size]


def run(mixer: Mixer, x: Tensor, first: Tensor, slot: object, bounds: Tensor | None = None) -> Tensor:
    rates = 100.0 ** -(torch.arange(0, mixer.head_dim, 2) / mixer.head_dim)
    angles = torch.cat([first[..., None] * rates] * 2, -1)
    out: Tensor = mixer(
        x,
        position_embeddings=(angles.cos(), angles.sin()),
        past_key_values=SimpleNamespace(layers={mixer.layer_idx: slot}),
        cu_seqlens=bounds,
    )[0]
    return out


@pytest.mark.parametrize("name", RECURRENT)
def test_pages_hold_what_a_mixer_keeps(name: str, make_student: Callable[..., StudentForCausalLM]) -> None:
    """Two prompts packed, one goes on in a second piece beside a new one, then all three decode together."""
    mixer = make_student(name).model.layers[0].self_attn
    torch.manual_seed(0)
    x = torch.randn(3, 30, mixer.geometry.hidden)
    pages = pages_for(state_bytes(mixer, torch.float32))
    views = state_views(pages, mixer, torch.float32)
    home = [4, 1, 2]
    read = [0, 0, 0]
    outputs: list[list[Tensor]] = [[], [], []]
    for who, counts in (((0, 1), (7, 2)), ((1, 2), (9, 1))):
        rows = torch.tensor([home[n] for n in who])
        started = torch.tensor([read[n] > 0 for n in who])
        pieces = [x[n, read[n] : read[n] + count] for n, count in zip(who, counts, strict=True)]
        places = torch.cat(
            [torch.arange(read[n], read[n] + count) for n, count in zip(who, counts, strict=True)]
        )
        bounds = torch.tensor([0, *itertools.accumulate(counts)])
        slot = PagedSlot(views, rows, started)
        mixed = run(mixer, torch.cat(pieces)[None], places[None], slot, bounds)[0]
        for n, piece, count in zip(who, mixed.split(list(counts)), counts, strict=True):
            outputs[n].append(piece)
            read[n] += count
    for _ in range(3):
        tokens = torch.stack([x[n, read[n] : read[n] + 1] for n in range(3)])
        mixed = run(mixer, tokens, torch.tensor(read)[:, None], PagedSlot(views, torch.tensor(home)))
        for n in range(3):
            outputs[n].append(mixed[n])
            read[n] += 1
    for n in range(3):
        alone = RecurrentSlot()
        wanted = run(mixer, x[n : n + 1, : read[n]], torch.arange(read[n])[None], alone)[0]
        torch.testing.assert_close(torch.cat(outputs[n]), wanted, atol=2e-5, rtol=2e-4)
        for key, state in (alone.read() or {}).items():
            torch.testing.assert_close(views[key][home[n]], state[0], atol=2e-5, rtol=2e-4)
    untouched = [slot for slot in range(SLOTS) if slot not in home]
    assert (pages[untouched] == -1).all()


def test_float32_comes_first_and_pages_are_whole_words(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    """A convolution of an odd number of 16-bit elements could not be followed by a float32 view."""
    mixer = make_student("gated_deltanet", family="llama", short_conv=2).model.layers[0].self_attn
    size = state_bytes(mixer, torch.bfloat16)
    views = state_views(pages_for(size), mixer, torch.bfloat16)
    assert size % ALIGNMENT == 0
    assert {name: (view.dtype, view.shape) for name, view in views.items()} == {
        "recurrent": (torch.float32, (SLOTS, 4, 8, 8)),
        "convolution": (torch.bfloat16, (SLOTS, 3 * 4 * 8, 1)),
    }
    assert views["recurrent"].data_ptr() < views["convolution"].data_ptr()


def test_one_size_for_all_layers_and_a_share_for_each_rank(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    student = make_student(["rebased", "gated_deltanet", "softmax", "hgrn2"])
    layers = skeleton(student.config)
    sizes = [state_bytes(layer, torch.float32) for layer in layers if isinstance(layer, Mixer)]
    assert largest_state(layers, 1, torch.float32) == max(sizes) > min(sizes)
    assert largest_state(layers, 2, torch.float32) == max(sizes) // 2
    assert largest_state(skeleton(make_student("softmax").config), 1, torch.float32) == 0
    assert all(parameter.is_meta for layer in layers for parameter in layer.parameters())

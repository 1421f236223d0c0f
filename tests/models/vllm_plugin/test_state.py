"""A mixer computes the same with its state in int8 pages as with its own tensors."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from evalsuite.models import MIXERS, StudentForCausalLM
from evalsuite.models.decoder.cache import RecurrentLayerCache
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.vllm_plugin.meta_model import (
    MAX_SHARED_PAGE_BYTES,
    build_meta_mixers,
    max_state_bytes,
    share_pages,
    states_per_page,
)
from evalsuite.models.vllm_plugin.state import PAGE_ALIGNMENT, PagedLayerCache, state_bytes, state_views

RECURRENT = sorted(name for name, kind in MIXERS.items() if kind.served_as == "recurrence")
SLOTS = 5


def pages_for(size: int) -> Tensor:
    """Pages that begin in the middle of a row of vLLM's cache, filled with NaN by the previous owner."""
    return torch.full((SLOTS, size + 64), -1, dtype=torch.int8)[:, 32 : 32 + size]


def run(
    mixer: RecurrentMixer, x: Tensor, first: Tensor, cache: object, cu_seqlens: Tensor | None = None
) -> Tensor:
    rates = 100.0 ** -(torch.arange(0, mixer.head_dim, 2) / mixer.head_dim)
    angles = torch.cat([first[..., None] * rates] * 2, -1)
    out: Tensor = mixer(
        x,
        position_embeddings=(angles.cos(), angles.sin()),
        past_key_values=SimpleNamespace(layers={mixer.layer_idx: cache}),
        cu_seqlens=cu_seqlens,
    )[0]
    return out


@pytest.mark.parametrize("name", RECURRENT)
def test_paged_state_equals_own_state(name: str, make_student: Callable[..., StudentForCausalLM]) -> None:
    """Two packed prompts, then a second chunk of one with a new prompt, then all three decode together."""
    mixer = make_student(name).model.layers[0].self_attn
    torch.manual_seed(0)
    x = torch.randn(3, 30, mixer.attention_shape.hidden_size)
    pages = pages_for(state_bytes(mixer, torch.float32))
    views = state_views(pages, mixer, torch.float32)
    home = [4, 1, 2]
    read = [0, 0, 0]
    outputs: list[list[Tensor]] = [[], [], []]
    for who, counts in (((0, 1), (7, 2)), ((1, 2), (9, 1))):
        state_indices = torch.tensor([home[n] for n in who])
        has_initial_state = torch.tensor([read[n] > 0 for n in who])
        parts = [x[n, read[n] : read[n] + count] for n, count in zip(who, counts, strict=True)]
        places = torch.cat(
            [torch.arange(read[n], read[n] + count) for n, count in zip(who, counts, strict=True)]
        )
        bounds = torch.tensor([0, *itertools.accumulate(counts)])
        cache = PagedLayerCache(views, state_indices, has_initial_state)
        mixed = run(mixer, torch.cat(parts)[None], places[None], cache, bounds)[0]
        for n, piece, count in zip(who, mixed.split(list(counts)), counts, strict=True):
            outputs[n].append(piece)
            read[n] += count
    for _ in range(3):
        tokens = torch.stack([x[n, read[n] : read[n] + 1] for n in range(3)])
        mixed = run(mixer, tokens, torch.tensor(read)[:, None], PagedLayerCache(views, torch.tensor(home)))
        for n in range(3):
            outputs[n].append(mixed[n])
            read[n] += 1
    for n in range(3):
        alone = RecurrentLayerCache()
        wanted = run(mixer, x[n : n + 1, : read[n]], torch.arange(read[n])[None], alone)[0]
        torch.testing.assert_close(torch.cat(outputs[n]), wanted, atol=2e-5, rtol=2e-4)
        for key, state in (alone.read() or {}).items():
            torch.testing.assert_close(views[key][home[n]], state[0], atol=2e-5, rtol=2e-4)
    untouched = [slot for slot in range(SLOTS) if slot not in home]
    assert (pages[untouched] == -1).all()


def test_float32_comes_first_and_pages_are_aligned(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    """A float32 view cannot follow an odd number of 16-bit elements."""
    mixer = make_student("gated_deltanet", family="llama", short_conv=2).model.layers[0].self_attn
    size = state_bytes(mixer, torch.bfloat16)
    views = state_views(pages_for(size), mixer, torch.bfloat16)
    assert size % PAGE_ALIGNMENT == 0
    assert {name: (view.dtype, view.shape) for name, view in views.items()} == {
        "recurrent": (torch.float32, (SLOTS, 4, 8, 8)),
        "convolution": (torch.bfloat16, (SLOTS, 3 * 4 * 8, 1)),
    }
    assert views["recurrent"].data_ptr() < views["convolution"].data_ptr()


def test_all_layers_share_one_size_that_ranks_divide(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    student = make_student(["rebased", "gated_deltanet", "softmax", "hgrn2"])
    layers = build_meta_mixers(student.config)
    sizes = [state_bytes(layer, torch.float32) for layer in layers if isinstance(layer, RecurrentMixer)]
    assert max_state_bytes(layers, 1, torch.float32) == max(sizes) > min(sizes)
    assert max_state_bytes(layers, 2, torch.float32) == max(sizes) // 2
    assert max_state_bytes(build_meta_mixers(make_student("softmax").config), 1, torch.float32) == 0
    assert all(parameter.is_meta for layer in layers for parameter in layer.parameters())


@pytest.mark.parametrize(
    ("kinds", "state_bytes", "pages", "states"),
    [
        ("rrrs" * 7 + "rr", 1 << 20, 7, 4),
        ("rrrs" * 7 + "rr", 2 << 20, 14, 2),
        ("rrrs" * 7 + "rr", 8 << 20, 23, 1),
        ("r" * 30, 1 << 10, 30, 1),
        ("rs" * 15, 1 << 10, 15, 1),
        ("rsss" * 4, 1 << 10, 4, 1),
        # The rarest kind of attention decides.
        ("rrwrrwrrs", 1 << 20, 2, 3),
        ("rrwrrwrrs", 1 << 10, 1, 6),
        # Groups of three layers: 27 states in three times three pages.
        ("rrrrrrrrrs" * 3, 1 << 20, 9, 3),
        ("s" * 4, 0, 0, 0),
    ],
)
def test_recurrent_layers_share_pages_in_groups_as_large_as_attention(
    kinds: str, state_bytes: int, pages: int, states: int
) -> None:
    windows = {"s": None, "w": 64}
    layers = [
        SimpleNamespace(
            served_as="recurrence" if kind == "r" else "attention",
            span=SimpleNamespace(window=windows.get(kind)),
        )
        for kind in kinds
    ]
    places = share_pages(layers, state_bytes, prefix_caching=False)
    assert list(places) == [index for index, kind in enumerate(kinds) if kind == "r"]
    assert len(set(places.values())) == len(places), "two layers at one place"
    used = [page for page, _ in places.values()]
    assert used == sorted(used)
    assert len(set(used)) == pages
    assert states_per_page(places) == states
    assert states < 2 or states * state_bytes <= MAX_SHARED_PAGE_BYTES
    assert states_per_page(share_pages(layers, state_bytes, prefix_caching=True)) == min(states, 1)


def test_a_state_in_the_middle_of_a_page_is_alone_there(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    """Writing one state of a page leaves the other bytes."""
    mixer = make_student("gated_deltanet").model.layers[0].self_attn
    size = state_bytes(mixer, torch.bfloat16)
    pages = pages_for(3 * size)
    views = state_views(pages[:, size:], mixer, torch.bfloat16)
    for view in views.values():
        view.zero_()
    assert not pages[:, size : 2 * size].any()
    assert (pages[:, :size] == -1).all()
    assert (pages[:, 2 * size :] == -1).all()

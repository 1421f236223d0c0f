"""Softmax attention of passes without gradients, in half precision: steps of generation, rows that continue
rows of a cache."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import HALF, Draw, Kernel, op
from evalsuite.models.ops.rotary import rotary


def _decode_samples(draw: Draw, heads: int, kv_heads: int, width: int) -> Iterator[tuple[Any, ...]]:
    # Keys of one part, and of several.
    for length, window in ((70, None), (600, None), (600, 300)):
        key, value = draw(2, 3, kv_heads, length, width)
        positions = torch.tensor([length - 1, 0, length // 2], device=key.device)
        yield draw(3, heads, 1, width), key, value, positions, width**-0.5, window


@op(
    inference=Kernel(
        module="decode",
        dtypes=HALF,
        where=lambda query, *_: query.shape[-1] <= 256,
        form=lambda query, key, *_: (query.shape[1], key.shape[1], query.shape[3]),
        samples=_decode_samples,
    )
)
def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """Attention of one token per row over the keys up to its own position.

    Args:
        query: [R, H, 1, D].
        key, value: [R, H / groups, L, D], with any strides but a contiguous last axis.
        positions: int64 [R], index of the row's own key; keys behind it are not read.
        scale: factor on the products.
        window: number of latest keys that are attended to, the row's own included; None for all.

    Returns:
        The mixed values [R, 1, H, D].
    """
    groups = query.shape[1] // key.shape[1]
    place, own = torch.arange(key.shape[2], device=key.device), positions[:, None, None, None]
    seen = (place <= own) & (place > own - (window or key.shape[2]))
    key, value = (x.where(seen.mT, 0).repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scale
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def _branch_samples(draw: Draw, heads: int, kv_heads: int, width: int) -> Iterator[tuple[Any, ...]]:
    for tokens, window in ((1, None), (30, None), (30, 20)):
        own, parents = draw(2, 3, kv_heads, tokens, width), draw(2, 2, kv_heads, 70, width)
        rows, lengths = (torch.tensor(each, device=own.device) for each in ([1, 1, 0], [70, 2]))
        yield draw(3, tokens, heads, width), *own, *parents, rows, lengths, width**-0.5, window


@op(
    inference=Kernel(
        module="branch",
        dtypes=HALF,
        form=lambda query, key, *_: (query.shape[2], key.shape[1], query.shape[3]),
        samples=_branch_samples,
    )
)
def branch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parent_key: Tensor,
    parent_value: Tensor,
    parent_rows: Tensor,
    parent_lengths: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attention of R rows of T tokens over the keys of the row that each continues, and causally its own.

    Args:
        query: [R, T, H, D].
        key, value: the rows' own, [R, H / groups, T, D], with any strides but a contiguous last axis.
        parent_key, parent_value: [P, H / groups, L, D], the same.
        parent_rows: int64 [R], the row of the parent that a row continues.
        parent_lengths: int64 [P], keys of each row of the parent, at least 1; those behind are not read.
        scale: factor on the products.
        window: number of latest keys that a token attends to, its own included; None for all.

    Returns:
        The mixed values [R, T, H, D].
    """
    tokens, heads = query.shape[1:3]
    known, before = parent_key.shape[2], parent_lengths[parent_rows, None, None, None]
    place, step = (torch.arange(count, device=query.device) for count in (known + tokens, tokens))
    # Places of keys and queries in their sequences.
    key_place, own_place = torch.where(place < known, place, place - known + before), before + step[:, None]
    seen = ((place < before) | (place >= known)) & (key_place <= own_place)
    seen &= key_place > own_place - (window or known + tokens)
    keys, values = (
        torch.cat([old_part[parent_rows], part], 2).repeat_interleave(heads // key.shape[1], 1)
        for old_part, part in ((parent_key, key), (parent_value, value))
    )
    scores = query.transpose(1, 2) @ keys.transpose(2, 3) * scale
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values).transpose(1, 2)


def _store_samples(draw: Draw, heads: int, kv_heads: int, width: int) -> Iterator[tuple[Any, ...]]:
    # A decode step, and rows of several tokens, which are compiled apart.
    for tokens in (1, 2):
        query, key, value = (draw(3 * tokens, count, width) for count in (heads, kv_heads, kv_heads))
        cos, sin = draw(2, 3, tokens, width)
        keys, values = torch.zeros_like(draw(2, 3, kv_heads, 8, width))
        places = torch.tensor([[0, 1], [6, 7], [3, 4]], device=query.device)[:, :tokens]
        yield query, key, value, cos, sin, keys, values, places.flatten()


@op(
    inference=Kernel(
        module="store",
        dtypes=HALF,
        form=lambda query, key, *_: (query.shape[1], key.shape[1], query.shape[2]),
        samples=_store_samples,
        exact=True,
    )
)
def rotate_and_store(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotary position embedding of R rows of T tokens, whose keys and values are stored in a cache.

    Args:
        query: [R · T, H, D], with any strides but a contiguous last axis, as key, value, keys and values.
        key, value: [R · T, Hkv, D].
        cos, sin: [R or 1, T, D] in the same dtype, in Llama's half-split layout.
        keys, values: [R, Hkv, L, D]; written in place.
        positions: int64 [R · T], index in the cache of the token's own key, with any stride.

    Returns:
        The rotated queries [R · T, H, D], keys and values.
    """
    rows = torch.arange(len(keys), device=keys.device)[:, None]
    query, key, value, places = (x.unflatten(0, (len(keys), -1)) for x in (query, key, value, positions))
    keys[rows, :, places] = rotary.reference(key, cos, sin)
    values[rows, :, places] = value
    return rotary.reference(query, cos, sin).flatten(0, 1), keys, values

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
    for length in (70, 600):
        key, value = draw(2, 3, kv_heads, length, width)
        positions = torch.tensor([length - 1, 0, length // 2], device=key.device)
        yield draw(3, heads, 1, width), key, value, positions, width**-0.5


@op(
    inference=Kernel(
        module="decode",
        dtypes=HALF,
        where=lambda query, *_: query.shape[-1] <= 256,
        form=lambda query, key, *_: (query.shape[1], key.shape[1], query.shape[3]),
        samples=_decode_samples,
    )
)
def decode_attention(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Attention of one token per row over the keys up to its own position.

    Args:
        query: [R, H, 1, D].
        key, value: [R, H / groups, L, D], with any strides but a contiguous last axis.
        positions: int64 [R], index of the row's own key; keys behind it are not read.
        scale: factor on the products.

    Returns:
        The mixed values [R, 1, H, D].
    """
    groups = query.shape[1] // key.shape[1]
    seen = torch.arange(key.shape[2], device=key.device) <= positions[:, None, None, None]
    key, value = (x.where(seen.mT, 0).repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scale
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def _branch_samples(draw: Draw, heads: int, kv_heads: int, width: int) -> Iterator[tuple[Any, ...]]:
    for tokens in (1, 30):
        own, parents = draw(2, 3, kv_heads, tokens, width), draw(2, 2, kv_heads, 70, width)
        rows, lengths = (torch.tensor(each, device=own.device) for each in ([1, 1, 0], [70, 2]))
        yield draw(3, tokens, heads, width), *own, *parents, rows, lengths, width**-0.5


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
) -> Tensor:
    """Attention of R rows of T tokens over the keys of the row that each continues, and causally its own.

    Args:
        query: [R, T, H, D].
        key, value: the rows' own, [R, H / groups, T, D], with any strides but a contiguous last axis.
        parent_key, parent_value: [P, H / groups, L, D], the same.
        parent_rows: int64 [R], the row of the parent that a row continues.
        parent_lengths: int64 [P], keys of each row of the parent, at least 1; those behind are not read.
        scale: factor on the products.

    Returns:
        The mixed values [R, T, H, D].
    """
    tokens, heads = query.shape[1:3]
    known = parent_key.shape[2]
    place = torch.arange(known + tokens, device=query.device)
    old = (place < parent_lengths[parent_rows, None, None, None]).expand(-1, -1, tokens, -1)
    new = (place >= known) & (place - known <= torch.arange(tokens, device=query.device)[:, None])
    keys, values = (
        torch.cat([old_part[parent_rows], part], 2).repeat_interleave(heads // key.shape[1], 1)
        for old_part, part in ((parent_key, key), (parent_value, value))
    )
    scores = query.transpose(1, 2) @ keys.transpose(2, 3) * scale
    return (scores.masked_fill(~(old | new), -torch.inf).softmax(-1) @ values).transpose(1, 2)


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

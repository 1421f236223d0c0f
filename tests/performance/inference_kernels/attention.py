"""Attention of continuations and of decode steps, and what stores their keys."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from evalsuite.models.ops import rotary
from tests.performance.inference_kernels.case import Case, Setting, Way


def cases(setting: Setting, small: bool) -> Iterator[Case]:
    """All operations of attention at the sizes of the benchmark."""
    for rows, tokens, known in ((8, 3, 5),) if small else ((4000, 21, 70), (1200, 1, 1000)):
        yield branch_attention(setting, rows, tokens, known)
    for rows, length in ((3, 70),) if small else ((512, 320), (64, 2048), (8, 8192)):
        yield decode_attention(setting, rows, length)
    for rows, tokens, length in ((3, 1, 5), (2, 3, 3)) if small else ((512, 1, 320), (4000, 21, 21)):
        yield rotate_and_store(setting, rows, tokens, length)


def masked_attention(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Attention in float64, [R, T, H, D], to the visible keys (bool [R, 1, T, L])."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (each.double().repeat_interleave(groups, 1) for each in (keys, values))
    scores = query.double() @ keys.transpose(2, 3) * query.shape[-1] ** -0.5
    return (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ values).transpose(1, 2)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask of visible keys that torch adds to scores."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def branch_attention(setting: Setting, rows: int, tokens: int, known: int) -> Case:
    """Four continuations of each context, whose keys are read in place or copied."""
    from evalsuite.models.mixers.cached_attention import grouped_attention

    shape, contexts = setting.shape, rows // 4
    parent_rows = setting.index(range(rows)) // 4
    lengths = torch.randint(known // 3, known + 1, (contexts,), device=setting.device)
    lengths[0] = known
    query = setting.draw(rows, tokens, shape.heads, shape.head_dim)
    own = [setting.draw(rows, shape.kv_heads, tokens, shape.head_dim) for _ in range(2)]
    old = [setting.draw(contexts, shape.kv_heads, known, shape.head_dim) for _ in range(2)]
    place = torch.arange(known + tokens, device=setting.device)
    before = place < lengths[parent_rows, None, None, None]
    after = (place >= known) & (place - known <= place[:tokens, None])
    visible = before | after
    mask = additive(visible, setting.dtype)
    scale = shape.head_dim**-0.5

    def joined() -> list[Tensor]:
        return [
            torch.cat([each.index_select(0, parent_rows), new], 2) for each, new in zip(old, own, strict=True)
        ]

    ways = []
    if setting.ours:
        from evalsuite.models.ops.attention.branch import branch_attention as kernel

        ways.append(Way("ours", lambda: [kernel(query, *own, *old, parent_rows, lengths, scale)]))
    name = "torch: copies, mask, grouped attention"
    ways.append(Way(name, lambda: [grouped_attention(query.transpose(1, 2), *joined(), mask, scale, None)]))
    return Case(
        f"branch attention {rows} x {tokens}, contexts up to {known}",
        lambda: [masked_attention(query.transpose(1, 2), *joined(), visible)],
        ways,
    )


def decode_attention(setting: Setting, rows: int, length: int) -> Case:
    """One query token per row, in a cache of which rows use a quarter or more."""
    from evalsuite.models.mixers.cached_attention import grouped_attention

    shape = setting.shape
    query = setting.draw(rows, 1, shape.heads, shape.head_dim).transpose(1, 2)
    cache = [setting.draw(rows, shape.kv_heads, length, shape.head_dim) for _ in range(2)]
    positions = torch.randint(length // 4, length, (rows,), device=setting.device)
    visible = torch.arange(length, device=setting.device) <= positions[:, None, None, None]
    mask = additive(visible, setting.dtype)
    ways = []
    if setting.ours:
        from evalsuite.models.ops.attention.decode import decode_attention as kernel

        ways.append(Way("ours", lambda: [kernel(query, *cache, positions, shape.head_dim**-0.5)]))
    name = "torch: grouped attention with a mask"
    ways.append(Way(name, lambda: [grouped_attention(query, *cache, mask, None, None)]))
    return Case(
        f"decode attention [{rows}, {shape.heads}, 1, {shape.head_dim}], {length} keys",
        lambda: [masked_attention(query, *cache, visible)],
        ways,
    )


def rotate_and_store(setting: Setting, rows: int, tokens: int, length: int) -> Case:
    """Rotary embedding of parts of a joined projection, whose keys and values go into a cache."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    shape, width = setting.shape, setting.shape.head_dim
    sizes = [shape.heads * width, shape.kv_heads * width, shape.kv_heads * width]
    parts = setting.draw(rows, tokens, sum(sizes)).split(sizes, -1)
    query, key, value = (part.unflatten(-1, (-1, width)) for part in parts)
    cos, sin = (setting.draw(rows, tokens, width) for _ in range(2))
    first = torch.randint(length - tokens + 1, (rows, 1), device=setting.device)
    places, row = first + setting.index(range(tokens)), setting.index(range(rows))[:, None]

    def cache(dtype: torch.dtype) -> Tensor:
        return torch.zeros(2, rows, shape.kv_heads, length, width, device=setting.device, dtype=dtype)

    def store(stored: Tensor, rotated: Tensor, new: Tensor) -> list[Tensor]:
        stored[0][row, :, places] = new
        stored[1][row, :, places] = value.to(stored.dtype)
        return [rotated, stored]

    def separate(stored: Tensor) -> list[Tensor]:
        rotated, new = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), cos, sin)
        return store(stored, rotated.transpose(1, 2), new.transpose(1, 2))

    def exact() -> list[Tensor]:
        angles = cos.double(), sin.double()
        both = (rotary.rotary.reference(each.double(), *angles) for each in (query, key))
        return store(cache(torch.float64), *both)

    ways = []
    if setting.ours:
        from evalsuite.models.ops.attention.store import rotate_and_store as kernel

        def ours(stored: Tensor) -> list[Tensor]:
            flat = (each.flatten(0, 1) for each in (query, key, value))
            rotated, *_ = kernel(*flat, cos, sin, stored[0], stored[1], places.flatten())
            return [rotated, stored]

        ways.append(
            Way(
                "ours",
                partial(ours, cache(setting.dtype)),
                lambda found: [found[0].unflatten(0, (rows, tokens)), found[1]],
            )
        )
    ways.append(Way("torch: separate operations", partial(separate, cache(setting.dtype))))
    return Case(f"rotary and cache [{rows}, {tokens}, {shape.heads}, {width}]", exact, ways)

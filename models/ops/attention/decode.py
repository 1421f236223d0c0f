"""Softmax attention of one query token per row over its cached keys, split along the keys (Flash-Decoding).

A decode step reads every key and value once, and has too few heads to keep a GPU busy with one program per
head. Each program therefore handles the query heads of one key head over a part of its keys; a second kernel
joins the parts. Rows have their own lengths: no mask is read, and keys behind a row's end, or before its
window, cost nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import NO_WINDOW, next_power_of_2

BLOCK_KEYS = 64
MIN_KEYS = 256
"""Fewest keys of one part: below, joining costs more than the parallel reads save."""
MAX_PARTS = 128
WAVES = 4
"""Programs per multiprocessor to aim at."""


@keep_compiled
@triton.jit(do_not_specialize=["window"])
def _part_kernel(  # type: ignore[no-untyped-def]
    q, k, v, positions, sums, maxima, totals,
    scale, q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key, part_keys, window,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, K_BLOCK: tl.constexpr, V_WIDTH: tl.constexpr, V_BLOCK: tl.constexpr,
    KEYS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    pair, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = pair // KV_HEADS, pair % KV_HEADS
    group = tl.arange(0, ROWS)
    channel, v_channel = tl.arange(0, K_BLOCK), tl.arange(0, V_BLOCK)
    length = tl.load(positions + row).to(tl.int32) + 1
    start = tl.maximum(length - window, 0) + part * part_keys
    end = tl.minimum(start + part_keys, length)
    query = tl.load(
        q + row * q_row + (head * GROUPS + group[:, None]) * q_head + channel[None, :],
        mask=(group[:, None] < GROUPS) & (channel[None, :] < WIDTH), other=0.0,
    )  # fmt: skip
    maximum = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, V_BLOCK], tl.float32)
    for first in range(start, end, KEYS):
        key = first + tl.arange(0, KEYS)
        inside = key < end
        where = key.to(tl.int64)
        keys = tl.load(
            k + row * k_row + head * k_head + where[None, :] * k_key + channel[:, None],
            mask=inside[None, :] & (channel[:, None] < WIDTH), other=0.0,
        )  # fmt: skip
        scores = tl.dot(query, keys) * scale
        scores = tl.where(inside[None, :], scores, -float("inf"))
        larger = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(maximum - larger)
        values = tl.load(
            v + row * v_row + head * v_head + where[:, None] * v_key + v_channel[None, :],
            mask=inside[:, None] & (v_channel[None, :] < V_WIDTH), other=0.0,
        )  # fmt: skip
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        maximum = larger
    slot = ((row * KV_HEADS + head) * GROUPS + group) * PARTS + part
    tl.store(maxima + slot, maximum, mask=group < GROUPS)
    tl.store(totals + slot, total, mask=group < GROUPS)
    tl.store(
        sums + slot[:, None] * V_WIDTH + v_channel[None, :], mixed,
        mask=(group[:, None] < GROUPS) & (v_channel[None, :] < V_WIDTH),
    )  # fmt: skip


@keep_compiled
@triton.jit
def _join_kernel(  # type: ignore[no-untyped-def]
    sums, maxima, totals, out,
    V_WIDTH: tl.constexpr, V_BLOCK: tl.constexpr, PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    part, channel = tl.arange(0, PARTS_BLOCK), tl.arange(0, V_BLOCK)
    slot = query * PARTS + part
    maximum = tl.load(maxima + slot, mask=part < PARTS, other=-float("inf"))
    total = tl.load(totals + slot, mask=part < PARTS, other=0.0)
    # The first part holds at least one key, so that the overall maximum is finite.
    weight = tl.exp2(maximum - tl.max(maximum, 0))
    parts = tl.load(
        sums + slot[:, None] * V_WIDTH + channel[None, :],
        mask=(part[:, None] < PARTS) & (channel[None, :] < V_WIDTH), other=0.0,
    )  # fmt: skip
    mixed = tl.sum(parts * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + query * V_WIDTH + channel, mixed.to(out.dtype.element_ty), mask=channel < V_WIDTH)


def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, window: int | None = None
) -> Tensor:
    rows, heads, _, width = query.shape
    kv_heads, length, v_width = key.shape[1], key.shape[2], value.shape[3]
    window = window or NO_WINDOW
    parts, part_keys = split(rows * kv_heads, min(length, window), query.device)
    groups = heads // kv_heads
    # tl.dot takes at least 16 rows.
    block_rows = max(16, next_power_of_2(groups))
    sums = torch.empty(rows, heads, parts, v_width, dtype=torch.float32, device=query.device)
    maxima, totals = torch.empty(2, rows, heads, parts, dtype=torch.float32, device=query.device)
    _part_kernel[(rows * kv_heads, parts)](
        query, key, value, positions, sums, maxima, totals,
        scale * 1.4426950408889634, query.stride(0), query.stride(1), *key.stride()[:3], *value.stride()[:3],
        part_keys, window,
        KV_HEADS=kv_heads, GROUPS=groups, ROWS=block_rows,
        WIDTH=width, K_BLOCK=max(16, next_power_of_2(width)),
        V_WIDTH=v_width, V_BLOCK=max(16, next_power_of_2(v_width)),
        KEYS=BLOCK_KEYS, PARTS=parts, num_warps=4, num_stages=3,
    )  # fmt: skip
    out = torch.empty(rows, 1, heads, v_width, dtype=value.dtype, device=query.device)
    _join_kernel[(rows * heads,)](
        sums, maxima, totals, out,
        V_WIDTH=v_width, V_BLOCK=max(16, next_power_of_2(v_width)),
        PARTS=parts, PARTS_BLOCK=next_power_of_2(parts), num_warps=4,
    )  # fmt: skip
    return out


def split(pairs: int, length: int, device: torch.device) -> tuple[int, int]:
    """Number of parts, and keys of each, for `pairs` rows times key heads and at most `length` keys.

    A power of two, so that few kernels are compiled; it depends on shapes only, as a CUDA graph requires.
    """
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    )
    wanted = min(WAVES * processors // pairs, length // MIN_KEYS, MAX_PARTS)
    parts = 1 << max(0, wanted.bit_length() - 1)
    keys = -(-length // parts)
    return parts, -(-keys // BLOCK_KEYS) * BLOCK_KEYS

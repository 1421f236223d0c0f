"""Softmax attention of rows that continue rows of a cache: its keys are read in place, for as many branches.

Scoring prefills a context once and then all its continuations. In torch each continuation needs a copy of the
context's keys and values in front of its own, and a mask [R, heads, T, L] in every layer, as contexts have
different lengths; these copies took longer than the attention.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import NO_WINDOW, next_power_of_2

BLOCK = 64
"""Queries, and keys, of one step of a program."""


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, k, v, k_key, v_key, key, visible, inside, channel, v_channel, maximum, total, mixed, scale,
    WIDTH: tl.constexpr, V_WIDTH: tl.constexpr,
):  # fmt: skip
    """Online softmax over some more keys."""
    where = key.to(tl.int64)
    keys = tl.load(
        k + where[None, :] * k_key + channel[:, None],
        mask=inside[None, :] & (channel[:, None] < WIDTH), other=0.0,
    )  # fmt: skip
    scores = tl.where(visible, tl.dot(query, keys) * scale, -float("inf"))
    larger = tl.maximum(maximum, tl.max(scores, 1))
    # A token whose window begins behind these keys has seen none.
    finite = tl.where(larger == -float("inf"), 0.0, larger)
    weights = tl.exp2(scores - finite[:, None])
    shrink = tl.exp2(maximum - finite)
    values = tl.load(
        v + where[:, None] * v_key + v_channel[None, :],
        mask=inside[:, None] & (v_channel[None, :] < V_WIDTH), other=0.0,
    )  # fmt: skip
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
    return larger, total, mixed


@keep_compiled
@triton.jit(do_not_specialize=["tokens", "window"])
def _branch_attention_kernel(  # type: ignore[no-untyped-def]
    q, k, v, parent_k, parent_v, parent_rows, parent_lengths, out, tokens, window, scale,
    k_row, k_head, k_key, v_row, v_head, v_key,
    parent_k_row, parent_k_head, parent_k_key, parent_v_row, parent_v_head, parent_v_key,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, K_BLOCK: tl.constexpr,
    V_WIDTH: tl.constexpr, V_BLOCK: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    row, kv_head = pair // KV_HEADS, pair % KV_HEADS
    # The query heads of a group share keys: pairs of token and head, token by token.
    first = tl.program_id(1) * QUERIES
    place = first + tl.arange(0, QUERIES)
    token, head = place // GROUPS, kv_head * GROUPS + place % GROUPS
    channel, v_channel = tl.arange(0, K_BLOCK), tl.arange(0, V_BLOCK)
    exists = token < tokens
    vector = (row * tokens + token) * (KV_HEADS * GROUPS) + head
    query = tl.load(
        q + vector[:, None] * WIDTH + channel[None, :],
        mask=exists[:, None] & (channel[None, :] < WIDTH), other=0.0,
    )  # fmt: skip
    maximum = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, V_BLOCK], tl.float32)

    parent = tl.load(parent_rows + row)
    parent_length = tl.load(parent_lengths + parent).to(tl.int32)
    parent_k += parent * parent_k_row + kv_head * parent_k_head
    parent_v += parent * parent_v_row + kv_head * parent_v_head
    # Keys before these are outside the windows of all queries.
    earliest = first // GROUPS - window + 1
    for start in range(tl.maximum(parent_length + earliest, 0), parent_length, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < parent_length
        visible = inside[None, :] & (key[None, :] > parent_length + token[:, None] - window)
        maximum, total, mixed = _attend(
            query, parent_k, parent_v, parent_k_key, parent_v_key, key, visible, inside,
            channel, v_channel, maximum, total, mixed, scale, WIDTH, V_WIDTH,
        )  # fmt: skip
    k += row * k_row + kv_head * k_head
    v += row * v_row + kv_head * v_head
    end = tl.minimum(tokens, (first + QUERIES - 1) // GROUPS + 1)
    for start in range(tl.maximum(earliest, 0), end, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < end
        visible = (
            inside[None, :] & (key[None, :] <= token[:, None]) & (key[None, :] > token[:, None] - window)
        )
        maximum, total, mixed = _attend(
            query, k, v, k_key, v_key, key, visible, inside,
            channel, v_channel, maximum, total, mixed, scale, WIDTH, V_WIDTH,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    tl.store(
        out + vector[:, None] * V_WIDTH + v_channel[None, :], mixed.to(out.dtype.element_ty),
        mask=exists[:, None] & (v_channel[None, :] < V_WIDTH),
    )  # fmt: skip


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
    query = query.contiguous()
    rows, tokens, heads, width = query.shape
    kv_heads, v_width = key.shape[1], value.shape[3]
    groups = heads // kv_heads
    out = torch.empty(rows, tokens, heads, v_width, dtype=value.dtype, device=query.device)
    _branch_attention_kernel[(rows * kv_heads, -(-tokens * groups // BLOCK))](
        query, key, value, parent_key, parent_value, parent_rows, parent_lengths, out,
        tokens, window or NO_WINDOW, scale * 1.4426950408889634, *key.stride()[:3], *value.stride()[:3],
        *parent_key.stride()[:3], *parent_value.stride()[:3],
        KV_HEADS=kv_heads, GROUPS=groups, WIDTH=width, K_BLOCK=max(16, next_power_of_2(width)),
        V_WIDTH=v_width, V_BLOCK=max(16, next_power_of_2(v_width)),
        # Keys and values of wide heads share the memory of a multiprocessor.
        QUERIES=BLOCK, KEYS=BLOCK if max(width, v_width) <= 128 else BLOCK // 2, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out

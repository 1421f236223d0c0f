"""Rotary position embedding of queries and keys, and storing keys and values in a cache, in one kernel.

Some thirteen operations of a decode step, on a few kilobytes each, take longer to start than to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import next_power_of_2
from evalsuite.models.ops.rotary.inference import rotated_halves


@keep_compiled
@triton.jit
def _rotate_and_store_kernel(  # type: ignore[no-untyped-def]
    q, k, v, cos, sin, positions, rotated, keys, values,
    tokens_per_row, q_token, q_head, k_token, k_head, v_token, v_head, angle_row, angle_token,
    keys_row, keys_head, keys_key, values_row, values_head, values_key,
    HEADS: tl.constexpr, Q_BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, KV_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, HALF_BLOCK: tl.constexpr, V_WIDTH: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = token // tokens_per_row
    position = tl.load(positions + token)
    half, head, kv_head = tl.arange(0, HALF_BLOCK), tl.arange(0, Q_BLOCK), tl.arange(0, KV_BLOCK)
    angle = row * angle_row + token % tokens_per_row * angle_token
    cos += angle
    sin += angle

    inside = (head[:, None] < HEADS) & (half[None, :] < WIDTH // 2)
    low, high = rotated_halves(q + token * q_token, cos, sin, head, half, inside, q_head, WIDTH)
    place = (token * HEADS + head[:, None]) * WIDTH + half[None, :]
    tl.store(rotated + place, low, mask=inside)
    tl.store(rotated + place + WIDTH // 2, high, mask=inside)

    inside = (kv_head[:, None] < KV_HEADS) & (half[None, :] < WIDTH // 2)
    low, high = rotated_halves(k + token * k_token, cos, sin, kv_head, half, inside, k_head, WIDTH)
    place = row * keys_row + kv_head.to(tl.int64)[:, None] * keys_head + position * keys_key + half[None, :]
    tl.store(keys + place, low, mask=inside)
    tl.store(keys + place + WIDTH // 2, high, mask=inside)

    channel = tl.arange(0, V_BLOCK)
    inside = (kv_head[:, None] < KV_HEADS) & (channel[None, :] < V_WIDTH)
    v += token * v_token
    value = tl.load(v + kv_head[:, None] * v_head + channel[None, :], mask=inside, other=0.0)
    place = row * values_row + kv_head.to(tl.int64)[:, None] * values_head + position * values_key
    tl.store(values + place + channel[None, :], value, mask=inside)


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
    count, heads, width = query.shape
    kv_heads, v_width = value.shape[1:]
    rotated = torch.empty(count, heads, width, dtype=query.dtype, device=query.device)
    cos, sin, positions = cos.contiguous(), sin.contiguous(), positions.contiguous()
    _rotate_and_store_kernel[(count,)](
        query, key, value, cos, sin, positions, rotated, keys, values,
        count // len(keys), *query.stride()[:2], *key.stride()[:2], *value.stride()[:2],
        cos.stride(0) if len(cos) > 1 else 0, width, *keys.stride()[:3], *values.stride()[:3],
        HEADS=heads, Q_BLOCK=next_power_of_2(heads),
        KV_HEADS=kv_heads, KV_BLOCK=next_power_of_2(kv_heads),
        WIDTH=width, HALF_BLOCK=next_power_of_2(width // 2),
        V_WIDTH=v_width, V_BLOCK=next_power_of_2(v_width), num_warps=4,
        # LLVM narrows a product and a sum that are rounded to 16 bits, and would fuse the two without
        # rounding the product: a quarter of the results was off by a unit in the last place.
        enable_fp_fusion=False,
    )  # fmt: skip
    return rotated, keys, values

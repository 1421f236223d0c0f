"""RMSNorm without gradients, in one kernel: of a sum, of a sum with a norm, of rows, of heads.

The kernels of training keep what their backward pass needs, and choose a configuration at every launch.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import next_power_of_2
from evalsuite.models.ops.rms_norm import Gain

ELEMENTS = 2048
"""Elements of one program."""


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, gain: Gain = "rounded_first"
) -> tuple[Tensor, Tensor]:
    if residual is not None:
        return add_norm(x, residual, weight, eps, gain)
    return head_norms([x], [weight], eps, gain=gain)[0], x


def qk_norm(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, gain: Gain
) -> tuple[Tensor, Tensor]:
    normed_q, normed_k = head_norms([q, k], [q_weight, k_weight], eps, gain=gain)
    return normed_q, normed_k


def l2_norm(*parts: Tensor) -> tuple[Tensor, ...]:
    width = parts[0].shape[-1]
    if len(parts) > 1 and any(part.shape[-1] != width for part in parts):
        return tuple(normed for part in parts for normed in l2_norm(part))
    return tuple(head_norms(parts, None, 1e-6 / width, width**-0.5))


@triton.jit
def _norm(  # type: ignore[no-untyped-def]
    value, weight, column, eps, dtype: tl.constexpr,
    WIDTH: tl.constexpr, ROUNDED_FIRST: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    out = value * scale[:, None]
    if ROUNDED_FIRST:
        out = out.to(dtype).to(tl.float32)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    if ONE_PLUS:
        w += 1
    return (out * w[None, :]).to(dtype)


@keep_compiled
@triton.jit(do_not_specialize=["rows"])
def _add_norm_kernel(  # type: ignore[no-untyped-def]
    x, residual, inner, weight, normed, total, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    INNER: tl.constexpr, OUTER: tl.constexpr, ROUNDED_FIRST: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = total.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    index = row[:, None] * WIDTH + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    # Norms and the sum are rounded where separate operations round them.
    if INNER:
        value = _norm(value, inner, column, eps, dtype, WIDTH, ROUNDED_FIRST, ONE_PLUS).to(tl.float32)
    value += tl.load(residual + index, mask=mask, other=0.0).to(tl.float32)
    rounded = value.to(dtype)
    tl.store(total + index, rounded, mask=mask)
    if OUTER:
        out = _norm(rounded.to(tl.float32), weight, column, eps, dtype, WIDTH, ROUNDED_FIRST, ONE_PLUS)
        tl.store(normed + index, out, mask=mask)


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, gain: Gain = "rounded_first"
) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, and the sum.

    Args:
        x, residual: [..., D], in one dtype; copied if they are not contiguous.
        weight: [D].
        eps: added to the mean square.
        gain: how the weight multiplies.

    Returns:
        The norm and the sum, both new.
    """
    return _add_norm(x, residual, None, weight, eps, gain)


def sandwich_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, following: Tensor | None, gain: Gain
) -> tuple[Tensor, Tensor]:
    return _add_norm(x, residual, weight, following, eps, gain)


def _add_norm(
    x: Tensor, residual: Tensor, inner: Tensor | None, weight: Tensor | None, eps: float, gain: Gain
) -> tuple[Tensor, Tensor]:
    """The norm of the residual plus x, and that sum; `inner` is the weight of a norm of x, if it has one.

    Without a weight the sum stands for its norm.
    """
    x, residual = x.contiguous(), residual.contiguous()
    width = x.shape[-1]
    block = next_power_of_2(width)
    rows, count = max(1, ELEMENTS // block), x.numel() // width
    total = torch.empty_like(x)
    normed = total if weight is None else torch.empty_like(x)
    _add_norm_kernel[(-(-count // rows),)](
        x, residual, x if inner is None else inner, x if weight is None else weight, normed, total, count,
        eps, WIDTH=width, BLOCK=block, ROWS=rows, INNER=inner is not None, OUTER=weight is not None,
        ROUNDED_FIRST=gain == "rounded_first", ONE_PLUS=gain == "one_plus", num_warps=4,
        enable_fp_fusion=False,  # See `attention.store`: the inner norm's product is rounded before the sum.
    )  # fmt: skip
    return normed, total


@keep_compiled
@triton.jit(do_not_specialize=["rows0", "rows1"])
def _head_norm_kernel(  # type: ignore[no-untyped-def]
    x0, x1, weight0, weight1, out0, out1, rows0, rows1, eps, factor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    ROUNDED_FIRST: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    x, weight, out, rows = x0, weight0, out0, rows0
    if tl.program_id(1) == 1:
        x, weight, out, rows = x1, weight1, out1, rows1
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    index = row[:, None] * WIDTH + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    normed = value * scale[:, None]
    if ROUNDED_FIRST:
        normed = normed.to(out.dtype.element_ty).to(tl.float32)
    if HAS_WEIGHT:
        w = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        if ONE_PLUS:
            w += 1
        normed *= w[None, :]
    else:
        normed *= factor
    tl.store(out + index, normed.to(out.dtype.element_ty), mask=mask)


def head_norms(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor] | None,
    eps: float,
    factor: float = 1.0,
    gain: Gain = "rounded_first",
) -> list[Tensor]:
    """RMSNorm over the last axis of one or two tensors in one launch, x / √(mean x² + eps) · weight.

    Args:
        parts: [..., D], of heads.
        weights: of each [D]; None: `factor` instead.
        eps: added to the mean square.
        factor: of all channels, if there are no weights.
        gain: how the weight multiplies.
    """
    parts = [x.contiguous() for x in parts]
    first, last = parts[0], parts[-1]
    width = first.shape[-1]
    block = next_power_of_2(width)
    rows = max(1, ELEMENTS // block)
    counts = [x.numel() // width for x in parts]
    outs = [torch.empty_like(x) for x in parts]
    gains = (first, first) if weights is None else (weights[0], weights[-1])
    _head_norm_kernel[(-(-max(counts) // rows), len(parts))](
        first, last, *gains, outs[0], outs[-1], counts[0], counts[-1], eps, factor,
        WIDTH=width, BLOCK=block, ROWS=rows, HAS_WEIGHT=weights is not None,
        ROUNDED_FIRST=gain == "rounded_first", ONE_PLUS=gain == "one_plus", num_warps=4,
    )  # fmt: skip
    return outs

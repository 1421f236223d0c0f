"""Gate of GLA: log decay from logits and the scaled keys, forward and backward, one kernel each."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.tuning.candidates import block_configs


@triton.jit
def _log_decay(z, inverse):  # type: ignore[no-untyped-def]
    """log α = logsigmoid(z) / τ and 1 − α², by their series where cancellation would lose all digits."""
    e = tl.exp(-tl.abs(z))
    log_decay = inverse * (
        tl.minimum(z, 0.0) - tl.where(e < 0.01, e * (1 - e * (0.5 - e / 3)), tl.log(1 + e))
    )
    u = 2 * log_decay
    one_minus_square = tl.where(u > -0.01, -u * (1 + u * (0.5 + u / 6)), 1 - tl.exp(u))
    return log_decay, tl.maximum(one_minus_square, 1e-8)


@triton.autotune(block_configs(), [])
@triton.jit
def _gate_forward_kernel(logits, k, log_decay, out, count, inverse, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    z = tl.load(logits + index, mask=mask, other=0.0).to(tl.float32)
    decay, one_minus_square = _log_decay(z, inverse)
    key = tl.load(k + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(log_decay + index, decay, mask=mask)
    tl.store(out + index, (key * tl.sqrt(one_minus_square)).to(out.dtype.element_ty), mask=mask)


@triton.autotune(block_configs(), [])
@triton.jit
def _gate_backward_kernel(  # type: ignore[no-untyped-def]
    logits, k, d_decay, d_out, d_logits, d_k, count, inverse, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    z = tl.load(logits + index, mask=mask, other=0.0).to(tl.float32)
    _, one_minus_square = _log_decay(z, inverse)
    size = tl.sqrt(one_minus_square)
    key = tl.load(k + index, mask=mask, other=0.0).to(tl.float32)
    d_scaled = tl.load(d_out + index, mask=mask, other=0.0).to(tl.float32)
    slope = tl.where(one_minus_square > 1e-8, d_scaled * key * (one_minus_square - 1) / size, 0.0)
    slope += tl.load(d_decay + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(d_k + index, (d_scaled * size).to(d_k.dtype.element_ty), mask=mask)
    d_z = slope * inverse * tl.sigmoid(-z)
    tl.store(d_logits + index, d_z.to(d_logits.dtype.element_ty), mask=mask)


class _GateAndScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, k: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logits, k = logits.contiguous(), k.contiguous()
        log_decay, out = torch.empty_like(logits, dtype=torch.float32), torch.empty_like(k)
        count = k.numel()
        _gate_forward_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](
            logits, k, log_decay, out, count, 1 / temperature
        )
        ctx.save_for_backward(logits, k)
        ctx.temperature = temperature
        return log_decay, out

    @staticmethod
    def backward(ctx: Any, d_decay: Tensor, d_out: Tensor) -> Any:
        logits, k = ctx.saved_tensors
        d_logits, d_k = torch.empty_like(logits), torch.empty_like(k)
        count = k.numel()
        _gate_backward_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](
            logits, k, d_decay.contiguous(), d_out.contiguous(), d_logits, d_k, count, 1 / ctx.temperature
        )
        return d_logits, d_k, None


gla_gate_and_scale = _GateAndScale.apply

"""fla's kernels without gradients: any number of rows, of any length.

Inference sees a new shape in every batch, and fla autotunes some kernels per number of rows, which takes
seconds; rows are therefore passed as sequences of one packed row. Up to `MAX_RECURRENT_LENGTH` tokens the
token-by-token kernels are as fast as the chunked ones, need no autotuning and compute in full float32. Our
`ops.inference.recurrent` takes their place where it proves right.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.ops.recurrence import fla_backend
from evalsuite.models.ops.recurrence.fla_backend import Kernel
from evalsuite.models.ops.recurrence.shapes import DecayShape

MAX_RECURRENT_LENGTH = 128
"""Largest length that the token-by-token kernels process."""

_SIMPLE, _DELTA = "fused_recurrent_simple_gla", "fused_recurrent_gated_delta_rule"
_FROM, _FROM_DELTA = "fla.ops.simple_gla", "fla.ops.gated_delta_rule"

RECURRENT_KERNELS: dict[tuple[DecayShape, bool], Kernel] = {
    ("none", False): Kernel(name=_SIMPLE, module=_FROM),
    ("head", False): Kernel(name=_SIMPLE, module=_FROM, keyword="g_gamma", decay_shape="head"),
    ("scalar", False): Kernel(name=_SIMPLE, module=_FROM, keyword="g", decay_shape="scalar"),
    ("channel", False): Kernel(
        name="fused_recurrent_gla", module="fla.ops.gla", keyword="gk", decay_shape="channel"
    ),
    ("none", True): Kernel(name=_DELTA, module=_FROM_DELTA),
    ("head", True): Kernel(name=_DELTA, module=_FROM_DELTA, keyword="g", decay_shape="scalar"),
    ("scalar", True): Kernel(name=_DELTA, module=_FROM_DELTA, keyword="g", decay_shape="scalar"),
    ("channel", True): Kernel(name=_DELTA, module=_FROM_DELTA, keyword="gk", decay_shape="channel"),
}


def kernel_for(decay_shape: DecayShape, *, delta: bool, dtype: torch.dtype, length: int) -> Kernel:
    """Return the kernel for rows of `length` tokens with q, k and v in `dtype`."""
    if length <= MAX_RECURRENT_LENGTH:
        return RECURRENT_KERNELS[decay_shape, delta]
    # The fallbacks of training concern gradients, except that DELTA rejects float32 altogether; GATED_DELTA
    # with a log decay of zero is the same algebra.
    kernel = fla_backend.KERNELS[decay_shape, delta]
    return fla_backend.GATED_DELTA if dtype == torch.float32 and kernel == fla_backend.DELTA else kernel


def run(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor | None,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    """Call `kernel`; arguments and results as in `evalsuite.models.ops.recurrence.recurrence`."""
    rows, length = q.shape[:2]
    if rows == 1 or cu_seqlens is not None or length <= MAX_RECURRENT_LENGTH:
        return fla_backend.run(kernel, q, k, v, log_decay=log_decay, beta=beta, cu_seqlens=cu_seqlens, **rest)
    per_token = log_decay is not None and log_decay.dim() > 1
    o, state = fla_backend.run(
        kernel,
        _as_packed(q),
        _as_packed(k),
        _as_packed(v),
        log_decay=_as_packed(log_decay) if log_decay is not None and per_token else log_decay,
        beta=None if beta is None else _as_packed(beta),
        cu_seqlens=_row_cu_seqlens(rows, length, q.device),
        **rest,
    )
    return o.unflatten(1, (rows, length)).squeeze(0), state


def _as_packed(x: Tensor) -> Tensor:
    """[B, T, …] → [1, B · T, …]."""
    return x.flatten(0, 1).unsqueeze(0)


@functools.lru_cache(maxsize=4)
def _row_cu_seqlens(rows: int, length: int, device: torch.device) -> Tensor:
    """Bounds of `rows` sequences of `length` tokens; cached, as fla caches derived tensors by identity."""
    return torch.arange(0, rows * length + 1, length, device=device)

"""fla's kernels where no gradient is wanted: one token or a few, and any number of rows.

Training meets one shape over and over; an engine meets another one in every batch. fla tunes some kernels
anew for each number of rows, which takes seconds, so rows are handed over as sequences of one packed row.
Up to `SHORT` tokens the kernels that go token by token are as fast as those in chunks, need no tuning at all
and compute in full float32.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.recurrence import fla_backend
from evalsuite.models.recurrence.fla_backend import Kernel
from evalsuite.models.recurrence.shapes import Transition

SHORT = 128
"""Most tokens that are read one by one."""

_SIMPLE, _DELTA = "fused_recurrent_simple_gla", "fused_recurrent_gated_delta_rule"
_FROM, _FROM_DELTA = "fla.ops.simple_gla", "fla.ops.gated_delta_rule"

TOKEN_BY_TOKEN: dict[tuple[Transition, bool], Kernel] = {
    ("none", False): Kernel(name=_SIMPLE, module=_FROM),
    ("head", False): Kernel(name=_SIMPLE, module=_FROM, keyword="g_gamma", form="head"),
    ("scalar", False): Kernel(name=_SIMPLE, module=_FROM, keyword="g", form="scalar"),
    ("channel", False): Kernel(
        name="fused_recurrent_gla", module="fla.ops.gla", keyword="gk", form="channel"
    ),
    ("none", True): Kernel(name=_DELTA, module=_FROM_DELTA),
    ("head", True): Kernel(name=_DELTA, module=_FROM_DELTA, keyword="g", form="scalar"),
    ("scalar", True): Kernel(name=_DELTA, module=_FROM_DELTA, keyword="g", form="scalar"),
    ("channel", True): Kernel(name=_DELTA, module=_FROM_DELTA, keyword="gk", form="channel"),
}


def kernel_for(transition: Transition, *, delta: bool, dtype: torch.dtype, length: int) -> Kernel:
    """The kernel for rows of `length` tokens with q, k and v in `dtype`."""
    if length <= SHORT:
        return TOKEN_BY_TOKEN[transition, delta]
    # Kernels that stand in elsewhere do so for their gradients, but this one refuses float32 altogether; with
    # a log decay of zero the gated one is the same algebra.
    kernel = fla_backend.KERNELS[transition, delta]
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
    """Call `kernel`; arguments and results as `evalsuite.models.recurrence.recurrence`."""
    rows, length = q.shape[:2]
    if rows == 1 or cu_seqlens is not None or length <= SHORT:
        return fla_backend.run(kernel, q, k, v, log_decay=log_decay, beta=beta, cu_seqlens=cu_seqlens, **rest)
    per_token = log_decay is not None and log_decay.dim() > 1
    o, state = fla_backend.run(
        kernel,
        _joined(q),
        _joined(k),
        _joined(v),
        log_decay=_joined(log_decay) if log_decay is not None and per_token else log_decay,
        beta=None if beta is None else _joined(beta),
        cu_seqlens=_bounds(rows, length, q.device),
        **rest,
    )
    return o.unflatten(1, (rows, length)).squeeze(0), state


def _joined(x: Tensor) -> Tensor:
    """[B, T, …] → [1, B · T, …]."""
    return x.flatten(0, 1).unsqueeze(0)


@functools.lru_cache(maxsize=4)
def _bounds(rows: int, length: int, device: torch.device) -> Tensor:
    """Bounds of `rows` sequences of `length` tokens; fla keeps what it derives from them by identity."""
    return torch.arange(0, rows * length + 1, length, device=device)

"""The one op that every mixer calls, and the switch between its backends."""

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.models.recurrence import fla_backend, inference
from evalsuite.models.recurrence.chunked import chunked, power_of_two, scores_inside
from evalsuite.models.recurrence.shapes import Transition, check, state_dtype
from evalsuite.models.recurrence.stepwise import stepwise

Backend = Literal["auto", "torch", "fla"]

_log = logging.getLogger("evalsuite")
_chosen: Backend = "auto"
_said: set[str] = set()
_used: dict[str, str] = {}


def set_backend(name: Backend) -> None:
    """Choose who computes the recurrence: `torch`, `fla`, or `auto` (fla for CUDA tensors, else torch).

    Raises:
        ConfigError: an unknown name.
        MissingDependencyError: `fla`, but it or a CUDA device is missing.
    """
    global _chosen
    if name not in ("auto", "torch", "fla"):
        raise ConfigError(f"recurrence backend '{name}' is unknown; known: auto, torch, fla")
    if name == "fla":
        missing = fla_backend.why_missing()
        if missing:
            raise MissingDependencyError(f"recurrence backend fla: {missing}")
    _chosen = name


def using_fla(x: Tensor) -> bool:
    """Whether a recurrence over `x` runs on fla's kernels. Says once which backend runs and why."""
    if _chosen == "torch":
        return False
    if _chosen == "fla":
        if x.device.type != "cuda":
            raise MissingDependencyError(f"recurrence backend fla: kernels need CUDA tensors, not {x.device}")
        return True
    if x.device.type != "cuda":
        return False
    if x.dtype == torch.float64:
        _say("recurrence: torch backend for float64, which fla's kernels do not compute in")
        return False
    missing = fla_backend.why_missing()
    if missing:
        _say(f"recurrence: torch backend on {x.device.type} ({missing}); training is several times slower")
        return False
    _say(f"recurrence: fla backend ({fla_backend.version()})")
    return True


def backend_note() -> list[str]:
    """What was said so far about the choice of backend, for run folders and reports."""
    return sorted(_said)


def kernels_used() -> dict[str, str]:
    """Transition → name of the kernel that computed it last in this process, the latest at the end."""
    return dict(_used)


def _record(transition: str, kernel: str) -> None:
    _used.pop(transition, None)
    _used[transition] = kernel


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning(text)


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ and o_t = scale · S_tᵀ q_t.

    Decay acts before the correction (arXiv 2603.26556, Eq. 4). A single token is stepped in torch where a
    gradient may be wanted: there is nothing to chunk.

    Args:
        q: queries [B, T, H, K]; k: keys [B, T, H, K]; v: values [B, T, H, V]; one dtype.
        log_decay: log D, at most 0: None (no decay), [H] (fixed per head), [B, T, H] (per head and
            token), or [B, T, H, K] (per channel and token).
        beta: write strength of the delta rule [B, T, H]; None for the additive rule.
        scale: factor on the queries.
        initial_state: [N, H, K, V], N sequences; None for zeros.
        cu_seqlens: integer bounds [N + 1] of sequences packed into one row (B = 1); None: N = B rows.

    Returns:
        The outputs [B, T, H, V] in the dtype of `v`, and the final states [N, H, K, V] in float32.

    Raises:
        ConfigError: shapes that do not fit; the message names the tensor and the shape that would.
    """
    transition = check(q, k, v, log_decay, beta, initial_state, cu_seqlens)
    label = transition + (" decay, delta rule" if beta is not None else " decay, additive")
    compute: Callable[..., tuple[Tensor, Tensor]]
    single = q.shape[1] == 1 and cu_seqlens is None
    if single and (torch.is_grad_enabled() or k.shape[-1] > fla_backend.WIDEST_KEY or not using_fla(v)):
        compute = stepwise
    elif using_fla(v):
        delta = beta is not None
        if torch.is_grad_enabled():
            kernel = fla_backend.kernel_for(transition, delta=delta, dtype=v.dtype, width=k.shape[-1])
            compute = partial(fla_backend.run, kernel)
        else:
            kernel = inference.kernel_for(transition, delta=delta, dtype=v.dtype, length=q.shape[1])
            compute = partial(inference.run, kernel)
        in_chunks = kernel.name.startswith("chunk_")
        if in_chunks and v.dtype == torch.float32 and os.environ.get("TRITON_F32_DEFAULT") != "ieee":
            _say(
                "recurrence: fla's kernels multiply float32 in TF32; for full precision set "
                "TRITON_F32_DEFAULT=ieee before the process starts"
            )
        _record(label, kernel.name)
    else:
        _record(label, "torch chunked")
        compute = chunked
    return compute(
        q,
        k,
        v,
        log_decay=log_decay,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
    )


def matrix(q: Tensor, k: Tensor, *, log_decay: Tensor | None, beta: Tensor | None, scale: float) -> Tensor:
    """Materialise the recurrence as a lower triangular matrix A [B, H, T, T] with o = A v.

    Args: as `recurrence`. Memory grows with T²; differentiable, so that it can be matched to a teacher's
    attention matrix (arXiv 2408.10189; seed 002, Eq. 7).
    """
    transition: Transition = check(q, k, k, log_decay, beta, None, None)
    batch, length, heads, _ = k.shape
    dtype = state_dtype(q, k, log_decay, beta)
    size = power_of_two(length) if transition == "channel" else length

    def whole(x: Tensor) -> Tensor:
        """[B, T, H, …] as one chunk [B, H, size, …]."""
        x = x.to(dtype).transpose(1, 2)
        return torch.nn.functional.pad(x, [0, 0] * (x.dim() - 3) + [0, size - length])

    with torch.autocast(k.device.type, enabled=False):
        total = None
        if log_decay is not None:
            per_token = log_decay.expand(batch, length, heads) if log_decay.dim() == 1 else log_decay
            total = whole(per_token).cumsum(2)
        writes = None if beta is None else whole(beta)
        scores, strict = scores_inside(whole(q) * scale, whole(k), total, writes)
        if strict is not None and writes is not None:
            identity = torch.eye(size, dtype=dtype, device=k.device)
            # A = P (I + L)^-1 diag(β): a system from the right, P on the left.
            scores = torch.linalg.solve_triangular(
                strict + identity, scores, upper=False, left=False, unitriangular=True
            ) * writes.unsqueeze(-2)
        return scores[:, :, :length, :length]

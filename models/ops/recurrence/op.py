"""The op that all mixers call; the kernel policy chooses its backend."""

import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import inference_kernels, use_triton, warn_once
from evalsuite.models.ops.recurrence import fla_backend, inference
from evalsuite.models.ops.recurrence.chunked import chunked, next_power_of_2, scores_in_chunk
from evalsuite.models.ops.recurrence.naive import naive_recurrent
from evalsuite.models.ops.recurrence.padding import mask_padding
from evalsuite.models.ops.recurrence.shapes import decay_shape_of, state_dtype, validate_shapes
from evalsuite.models.ops.recurrence.states import OWN, StateAccess

_last_kernels: dict[str, str] = {}


def last_kernels() -> dict[str, str]:
    """Transition → name of the kernel that computed it last in this process, the most recent at the end."""
    return dict(_last_kernels)


def _record_kernel(transition: str, kernel: str) -> None:
    _last_kernels.pop(transition, None)
    _last_kernels[transition] = kernel


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
    token_mask: Tensor | None = None,
    access: StateAccess = OWN,
) -> tuple[Tensor, Tensor]:
    """Compute S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ and o_t = scale · S_tᵀ q_t.

    The decay is applied before the correction (arXiv 2603.26556, Eq. 4). A single token that may need a
    gradient is computed by one torch step, as there is nothing to chunk.

    Args:
        q: queries [B, T, H, K]; k: keys [B, T, H, K]; v: values [B, T, H, V]; one dtype.
        log_decay: log D, at most 0: None (no decay), [H] (fixed per head), [B, T, H] (per head and
            token), or [B, T, H, K] (per channel and token).
        beta: write strength of the delta rule [B, T, H]; None for the additive rule.
        scale: factor on the queries.
        initial_state: [N, H, K, V], N sequences; None for zeros.
        cu_seqlens: integer bounds [N + 1] of sequences packed into one row (B = 1); None: N = B rows.
        token_mask: bool [B, T], the real tokens; the others leave the state as it is, and their outputs are
            arbitrary but finite. None: all are real.
        access: where the rows' states lie in `initial_state`, then [S, H, K, V], and whether final ones may
            be written over them. Slots are for rows without `cu_seqlens`; `initial_state` is then returned.

    Returns:
        The outputs [B, T, H, V] in the dtype of `v`, and the final states [N, H, K, V] in float32.

    Raises:
        ConfigError: a shape is wrong; the message names the tensor and the expected shape.
    """
    slots = access.slots
    own_states = initial_state if slots is None else None
    decay_shape = validate_shapes(q, k, v, log_decay, beta, own_states, cu_seqlens)
    transition = decay_shape + (" decay, delta rule" if beta is not None else " decay, additive")
    delta, wide = beta is not None, k.shape[-1] > fla_backend.MAX_KEY_DIM
    single = q.shape[1] == 1 and cu_seqlens is None
    stepwise = single and (torch.is_grad_enabled() or wide or not use_triton(v))
    short = q.shape[1] <= inference.MAX_RECURRENT_LENGTH and cu_seqlens is None and not wide
    if short and not stepwise and (kernels := inference_kernels(v, "recurrent", decay_shape, delta)):
        _record_kernel(transition, "recurrent")
        found: tuple[Tensor, Tensor] = kernels.recurrent(
            q,
            k,
            v,
            log_decay=log_decay,
            beta=beta,
            scale=scale,
            initial_state=initial_state,
            token_mask=token_mask,
            access=access,
        )
        return found
    if token_mask is not None:
        k, log_decay, beta = mask_padding(k, log_decay, beta, token_mask)
        # A fixed decay becomes one per token, as pads do not decay, which other kernels compute.
        decay_shape = decay_shape_of(k, log_decay)
    compute: Callable[..., tuple[Tensor, Tensor]]
    if stepwise:
        compute = naive_recurrent
    elif use_triton(v):
        if torch.is_grad_enabled():
            kernel = fla_backend.kernel_for(decay_shape, delta=delta, dtype=v.dtype)
            compute = partial(fla_backend.run, kernel)
        else:
            kernel = inference.kernel_for(decay_shape, delta=delta, dtype=v.dtype, length=q.shape[1])
            compute = partial(inference.run, kernel)
        in_chunks = kernel.name.startswith("chunk_")
        if in_chunks and v.dtype == torch.float32 and os.environ.get("TRITON_F32_DEFAULT") != "ieee":
            warn_once(
                "recurrence: fla's kernels multiply float32 in TF32; for full precision set "
                "TRITON_F32_DEFAULT=ieee before the process starts"
            )
        _record_kernel(transition, kernel.name)
    else:
        _record_kernel(transition, "torch chunked")
        compute = chunked
    if slots is not None:
        assert initial_state is not None
        own_states = initial_state[slots]
    o, last = compute(
        q,
        k,
        v,
        log_decay=log_decay,
        beta=beta,
        scale=scale,
        initial_state=own_states,
        cu_seqlens=cu_seqlens,
    )
    if slots is None or initial_state is None:
        return o, last
    if not access.discards:
        initial_state[slots] = last.to(initial_state.dtype)
    return o, initial_state


def recurrence_matrix(
    q: Tensor, k: Tensor, *, log_decay: Tensor | None, beta: Tensor | None, scale: float
) -> Tensor:
    """Materialise the recurrence as a lower triangular matrix A [B, H, T, T] with o = A v.

    Arguments as in `recurrence`. Memory grows with T². Differentiable, so that it can be matched to a
    teacher's attention matrix (arXiv 2408.10189; arXiv 2504.14366v1, Eq. 7).
    """
    decay_shape = validate_shapes(q, k, k, log_decay, beta, None, None)
    batch, length, heads, _ = k.shape
    dtype = state_dtype(q, k, log_decay, beta)
    size = next_power_of_2(length) if decay_shape == "channel" else length

    def as_chunk(x: Tensor) -> Tensor:
        """[B, T, H, …] as one chunk [B, H, size, …]."""
        x = x.to(dtype).transpose(1, 2)
        return torch.nn.functional.pad(x, [0, 0] * (x.dim() - 3) + [0, size - length])

    with torch.autocast(k.device.type, enabled=False):
        cumulative_decay = None
        if log_decay is not None:
            per_token = log_decay.expand(batch, length, heads) if log_decay.dim() == 1 else log_decay
            cumulative_decay = as_chunk(per_token).cumsum(2)
        betas = None if beta is None else as_chunk(beta)
        scores, strict = scores_in_chunk(as_chunk(q) * scale, as_chunk(k), cumulative_decay, betas)
        if strict is not None and betas is not None:
            identity = torch.eye(size, dtype=dtype, device=k.device)
            # A = P (I + L)^-1 diag(β): a triangular solve with P on the left.
            scores = torch.linalg.solve_triangular(
                strict + identity, scores, upper=False, left=False, unitriangular=True
            ) * betas.unsqueeze(-2)
        return scores[:, :, :length, :length]

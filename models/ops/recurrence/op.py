"""The op that all mixers call, and the choice of its backend."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op, use_triton, warn_once
from evalsuite.models.ops.numerics import next_power_of_2
from evalsuite.models.ops.recurrence import fla_backend
from evalsuite.models.ops.recurrence.chunked import chunked, erasing_scores, scores_in_chunk
from evalsuite.models.ops.recurrence.inputs import DecayShape, Erase, RecurrenceInputs, Rule, StateAccess
from evalsuite.models.ops.recurrence.naive import naive_recurrent

Backend = Callable[[RecurrenceInputs], tuple[Tensor, Tensor]]

_last_kernels: dict[str, str] = {}


def last_kernels() -> dict[str, str]:
    """Transition → name of the kernel that computed it last in this process, the most recent at the end."""
    return dict(_last_kernels)


def compute_recurrence(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Compute S_t = (D_t − r_t a_tᵀ) S_{t-1} + k_t v_tᵀ and o_t = scale · S_tᵀ q_t; see `RecurrenceInputs`.

    Returns:
        The outputs [B, T, H, V] in the dtype of `v`, and the final states [N, H, K, V] in float32.

    Raises:
        ConfigError: a shape is wrong; the message names the tensor and the expected shape.
    """
    inputs.validate()
    kernel, compute = _backend(inputs)
    if kernel:
        transition = f"{inputs.decay_shape} decay, {inputs.rule}"
        _last_kernels.pop(transition, None)
        _last_kernels[transition] = kernel
    if kernel == DECODE:
        return compute(inputs)
    o, last = compute(inputs.plain())
    return o, _stored(inputs, last)


DECODE = "recurrent"
"""Name of our own kernel, which reads masks and slots itself."""


def _samples(draw: Draw, decay: DecayShape, rule: Rule, two_keys: bool) -> Iterator[tuple[Any, ...]]:
    """Steps in place and in slots, tokens with padding."""
    for case, length in (("in place", 1), ("in slots", 1), ("with padding", 3)):
        q, k, v, gates = draw(4, 2, length, 2, 64)
        gates, states = gates.float().sigmoid(), draw(4, 2, 64, 64).float()
        erase = None
        if rule == "generalized delta rule":
            read, along = functional.normalize(draw(2, 2, length, 2, 64), dim=-1)
            erase = Erase(read, along if two_keys else None)
        decays = {"none": None, "head": gates[0, 0, :, 0], "scalar": gates[..., 0], "channel": gates}[decay]
        slots = torch.tensor([3, 1], device=v.device)
        mask = torch.tensor([[True] * 3, [True, True, False]], device=v.device)
        yield (
            RecurrenceInputs(
                q,
                functional.normalize(k, dim=-1),
                v,
                log_decay=None if decays is None else decays.log(),
                beta=gates[..., 1] if rule == "delta rule" else None,
                erase=erase,
                scale=0.5,
                initial_state={"in place": states[:2], "in slots": states, "with padding": None}[case],
                token_mask=mask if case == "with padding" else None,
                access=StateAccess(slots if case == "in slots" else None, in_place=case == "in place"),
            ),
        )


@op(inference=Kernel(module="decode", samples=_samples))
def recurrent(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Compute the recurrence of rows without `cu_seqlens` token by token, in float32.

    Inputs have any 16- or 32-bit dtype; `initial_state` is float32, and in slots only its first axis may have
    any stride. Outputs at pads are zeros. Final states are written over those in slots (rows that share a
    slot race), and over contiguous ones if they may be.
    """
    o, last = naive_recurrent(inputs.plain())
    if inputs.token_mask is not None:
        o = o * inputs.token_mask[..., None, None]
    return o, _stored(inputs, last)


def _stored(inputs: RecurrenceInputs, last: Tensor) -> Tensor:
    """The final states, written over those in slots if there are any."""
    states, access = inputs.initial_state, inputs.access
    if states is None or access.slots is None:
        return last
    if not access.discards:
        states[access.slots] = last.to(states.dtype)
    return states


def _backend(inputs: RecurrenceInputs) -> tuple[str, Backend]:
    """Name of the kernel, and the function that runs it. Single steps in torch have no name."""
    v, delta, erase, length = inputs.v, inputs.beta is not None, inputs.erase, inputs.q.shape[1]
    on_triton, trains = use_triton(v), torch.is_grad_enabled()
    fits = inputs.k.shape[-1] <= fla_backend.MAX_KEY_DIM
    # A single token that may need a gradient is one torch step, as there is nothing to chunk.
    if length == 1 and inputs.cu_seqlens is None and (trains or not fits or not on_triton):
        return "", naive_recurrent
    if not on_triton:
        return "torch chunked", chunked
    short = fits and length <= fla_backend.MAX_RECURRENT_LENGTH and inputs.cu_seqlens is None
    two_keys = erase is not None and erase.along is not None
    if short and recurrent.has_kernel(v, inputs.decay_shape, inputs.rule, two_keys):
        return DECODE, recurrent.load("inference")
    # Pads do not decay, so that a fixed decay becomes one per token, which other kernels compute.
    decay = inputs.decay_shape
    if decay == "head" and inputs.token_mask is not None:
        decay = "scalar"
    if erase is not None:
        # A single token has no chunk, and float32 more digits than the kernel's least decay leaves.
        if length == 1 and inputs.cu_seqlens is None:
            return "", naive_recurrent
        if v.dtype == torch.float32:
            return "torch chunked", chunked
        kernel = fla_backend.DPLR
    elif trains:
        kernel = fla_backend.kernel_for(decay, delta=delta, dtype=v.dtype)
    else:
        kernel = fla_backend.inference_kernel_for(decay, delta=delta, dtype=v.dtype, length=length)
    in_chunks = kernel.name.startswith("chunk_")
    if in_chunks and v.dtype == torch.float32 and fla_backend.multiplies_in_tf32():
        warn_once(
            "recurrence: fla's kernels multiply float32 in TF32; for full precision set "
            "TRITON_F32_DEFAULT=ieee before the process starts"
        )
    return kernel.name, partial(fla_backend.run if trains else fla_backend.run_rows, kernel)


def recurrence_matrix(inputs: RecurrenceInputs) -> Tensor:
    """Materialise the recurrence as a lower triangular matrix A [B, H, T, T] with o = A v.

    For rows that start from zeros. Memory grows with T². Differentiable, so that it can be matched to a
    teacher's attention matrix (arXiv 2408.10189; arXiv 2504.14366v1, Eq. 7).
    """
    inputs.validate()
    inputs = inputs.plain()
    length, dtype = inputs.k.shape[1], inputs.state_dtype
    size = next_power_of_2(length) if inputs.decay_shape == "channel" else length

    def as_chunk(x: Tensor) -> Tensor:
        """[B, T, H, …] as one chunk [B, H, size, …]."""
        x = x.to(dtype).transpose(1, 2)
        return torch.nn.functional.pad(x, [0, 0] * (x.dim() - 3) + [0, size - length])

    with torch.autocast(inputs.k.device.type, enabled=False):
        log_decay, beta = inputs.decay_per_token, inputs.beta
        cumulative_decay = None if log_decay is None else as_chunk(log_decay).cumsum(2)
        betas = None if beta is None else as_chunk(beta)
        queries, keys = as_chunk(inputs.q) * inputs.scale, as_chunk(inputs.k)

        def solve(strict: Tensor, scores: Tensor) -> Tensor:
            """P (I + L)^-1: a triangular solve with P on the left."""
            identity = torch.eye(size, dtype=dtype, device=inputs.k.device)
            return torch.linalg.solve_triangular(
                strict + identity, scores, upper=False, left=False, unitriangular=True
            )

        if inputs.erase is not None:
            erase = inputs.erase.map(as_chunk)
            scores, by_key, strict = erasing_scores(queries, keys, cumulative_decay, erase)
            if erase.along is None:
                scores = solve(strict, scores)
            else:
                by_query, removed = scores.split(size, -1)
                scores = by_query - solve(strict, removed) @ by_key
        else:
            scores, below = scores_in_chunk(queries, keys, cumulative_decay, betas)
            if below is not None and betas is not None:
                # A = P (I + L)^-1 diag(β).
                scores = solve(below, scores) * betas.unsqueeze(-2)
        return scores[:, :, :length, :length]

"""The read of ridge regression: queries that are first divided by the covariance of the keys.

    x_t = (I + H_t)⁻¹ q_t        H_t = D_t H_{t-1} + β_t k_t k_tᵀ

H is a state of the recurrence, with the keys as values, so that the product H_t p_t of all tokens, which is
what conjugate gradients need, is a read of the recurrence with p as queries (arXiv 2506.05233): packing,
padding, chunks and states are therefore those of the recurrence, and x are queries like others. All steps
read the states of the same chunks (`with_reads`), on a GPU within one kernel of fla (`fla_ridge`).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op, use_triton
from evalsuite.models.ops.recurrence.chunked import with_reads
from evalsuite.models.ops.recurrence.fla_backend import MAX_RECURRENT_LENGTH, multiplies_in_tf32
from evalsuite.models.ops.recurrence.inputs import OWN, RecurrenceInputs
from evalsuite.models.ops.recurrence.op import compute_recurrence

Recurrence = Callable[[RecurrenceInputs], tuple[Tensor, Tensor]]

MAX_WIDTH = 128
"""Widest keys of fla's kernel."""
MAX_EXACT_WIDTH = 64
"""Widest keys of fla's kernel in full precision (TRITON_F32_DEFAULT): for 128, products of 64 × 128 tiles did
not compile within four minutes, which the proof would wait for, too."""


def ridge_queries(inputs: RecurrenceInputs, num_steps: int, recurrence: Recurrence) -> Tensor:
    """Solve (I + H_t) x_t = q_t for each token by conjugate gradients.

    A ridge Λ other than I is one of queries and keys times Λ^{-1/2}. Gradients are those of the solution, not
    of the steps (the implicit function theorem): of x̄ = ∂L/∂x they need a second solution, (I + H_t)⁻¹ x̄_t,
    and the gradient of one product H_t x_t.

    Args:
        inputs: of the recurrence with the additive rule; `scale` has no effect. The keys are β_t k_t, and the
            last K columns of values and states are k_t and H_t; all in float32 or float64.
        num_steps: products with H. From zero, as many steps as H_t has distinct eigenvalues are exact.
        recurrence: what computes the recurrence.

    Returns:
        x [B, T, H, K].
    """
    width, state = inputs.k.shape[-1], inputs.initial_state
    if state is not None:
        state = (state if inputs.access.slots is None else state[inputs.access.slots])[..., -width:]
    inputs = replace(inputs, v=inputs.v[..., -width:], scale=1.0, initial_state=state, access=OWN)
    # Chosen here, as a backward pass runs on a thread of its own, under the default kernel policy.
    solve = _solver(inputs, num_steps, recurrence)
    x = solve(_constant(inputs))
    if not torch.is_grad_enabled():
        return x
    covered, _ = recurrence(replace(inputs, q=x))
    return _Solution.apply(x, inputs.q - x - covered, inputs, solve)


def _constant(inputs: RecurrenceInputs) -> RecurrenceInputs:
    """The same without a gradient.

    With `torch.no_grad` in its place a recurrence takes its kernels for inference, which pack rows into one:
    fla then counts chunks on the host, and a training step is no CUDA graph.
    """
    state = None if inputs.initial_state is None else inputs.initial_state.detach()
    decay = None if inputs.log_decay is None else inputs.log_decay.detach()
    return replace(inputs.with_tokens(Tensor.detach), log_decay=decay, initial_state=state)


def _solver(
    inputs: RecurrenceInputs, num_steps: int, recurrence: Recurrence
) -> Callable[[RecurrenceInputs], Tensor]:
    """What computes (I + H_t)⁻¹ q_t of inputs like these."""
    if inputs.k.shape[1] == 1 and inputs.cu_seqlens is None:
        return partial(_solve_token, num_steps=num_steps, recurrence=recurrence)
    if recurrence is not compute_recurrence:
        # Its states need not be those of the chunks.
        return partial(_solve_by, num_steps=num_steps, recurrence=recurrence)
    solve = solve_ridge.load("inference") if kernel_solves(inputs) else solve_ridge.reference
    return partial(solve, num_steps=num_steps)


def kernel_solves(inputs: RecurrenceInputs) -> bool:
    """Whether fla's kernel solves inputs like these: on a GPU in float32, where it proves right.

    It multiplies in TF32, as fla's recurrence does, and is therefore proven to the tolerance of bfloat16.
    Short rows without gradients are solved exactly, as the recurrence computes them.
    """
    q, width = inputs.q, inputs.k.shape[-1]
    short = q.shape[1] <= MAX_RECURRENT_LENGTH and not torch.is_grad_enabled()
    fits = width <= (MAX_WIDTH if multiplies_in_tf32() else MAX_EXACT_WIDTH) and not short
    return fits and use_triton(q) and solve_ridge.proven(q.device, torch.bfloat16, width)


def _samples(draw: Draw, width: int) -> Iterator[tuple[Any, ...]]:
    """A row and packed sequences with states; queries as small as gradients."""
    length = 260
    for bounds in ([0, length], [0, 70, 75, length]):
        q, k, gates = draw(3, 1, length, 2, width).float()
        k, states = functional.normalize(k, dim=-1), draw(len(bounds) - 1, 2, width, width).float()
        inputs = RecurrenceInputs(
            q=1e-6 * q,
            k=gates[..., :1].sigmoid() * k,
            v=k,
            log_decay=functional.logsigmoid(3 + gates[..., 1]),
            initial_state=states @ states.mT / width,
            cu_seqlens=torch.tensor(bounds, device=q.device) if len(bounds) > 2 else None,
        )
        yield inputs, 30


@op(inference=Kernel(module="fla_ridge", samples=_samples))
def solve_ridge(inputs: RecurrenceInputs, num_steps: int) -> Tensor:
    """Compute (I + H_t)⁻¹ q_t without a gradient; arguments as in `ridge_queries`, with values k_t."""
    return with_reads(inputs.plain(), partial(conjugate_gradients, num_steps=num_steps))


def _solve_by(inputs: RecurrenceInputs, num_steps: int, recurrence: Recurrence) -> Tensor:
    """`solve_ridge` with a call of another recurrence for each step."""
    return conjugate_gradients(lambda p: recurrence(replace(inputs, q=p))[0], inputs.q, num_steps)


def _solve_token(inputs: RecurrenceInputs, num_steps: int, recurrence: Recurrence) -> Tensor:
    """`solve_ridge` of a single token, which has one H."""
    _, covariance = recurrence(inputs)
    return conjugate_gradients(
        lambda p: (covariance.unsqueeze(1) * p.unsqueeze(-1)).sum(-2), inputs.q, num_steps
    )


def conjugate_gradients(multiply: Callable[[Tensor], Tensor], q: Tensor, num_steps: int) -> Tensor:
    """Solve (I + H) x = q for many vectors at once, from x = 0 (Hestenes and Stiefel, 1952).

    Args:
        multiply: p [..., K] → H p, H symmetric and positive semidefinite for each vector.
        q: [..., K].
        num_steps: calls of `multiply`.
    """
    tiny = torch.finfo(q.dtype).tiny
    x, residual, direction = torch.zeros_like(q), q, q
    error = _dot(q, q)
    for _ in range(num_steps):
        product = multiply(direction)
        # At least |p|², also for an H that storage in few bits has rounded.
        curvature = _dot(direction, direction) + _dot(direction, product).clamp_min(0)
        step = error / curvature.clamp_min(tiny)
        x = torch.addcmul(x, step, direction)
        residual = torch.addcmul(residual, step, direction + product, value=-1)
        last, error = error, _dot(residual, residual)
        direction = torch.addcmul(residual, error / last.clamp_min(tiny), direction)
    return x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


class _Solution(torch.autograd.Function):
    """x as a function of its residual q − (I + H) x, computed at a constant x: dx = (I + H)⁻¹ d residual."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        inputs: RecurrenceInputs,
        solve: Callable[[RecurrenceInputs], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(inputs.k, inputs.v, inputs.log_decay, inputs.initial_state)
        ctx.layout = {"cu_seqlens": inputs.cu_seqlens, "token_mask": inputs.token_mask}
        ctx.solve = solve
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> Any:
        k, v, log_decay, state = ctx.saved_tensors
        inputs = RecurrenceInputs(d_x, k, v, log_decay=log_decay, initial_state=state, **ctx.layout)
        with torch.enable_grad():
            return None, ctx.solve(_constant(inputs)), None, None

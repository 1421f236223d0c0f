"""The read of ridge regression: queries that are first divided by the covariance of the keys.

    x_t = (I + H_t)⁻¹ q_t        H_t = D_t H_{t-1} + β_t k_t k_tᵀ

H is a state of the recurrence, with the keys as values, so that the product H_t p_t of all tokens, which is
what conjugate gradients need, is one call of the recurrence with p as queries (arXiv 2506.05233).
Packing, padding, chunks and states are therefore those of the recurrence, and x are queries like others.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evalsuite.models.ops.recurrence.inputs import OWN, RecurrenceInputs

Recurrence = Callable[[RecurrenceInputs], tuple[Tensor, Tensor]]


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
    x = _solve(_constant(inputs), num_steps, recurrence)
    if not torch.is_grad_enabled():
        return x
    covered, _ = recurrence(replace(inputs, q=x))
    return _Solution.apply(x, inputs.q - x - covered, inputs, num_steps, recurrence)


def _constant(inputs: RecurrenceInputs) -> RecurrenceInputs:
    """The same without a gradient.

    With `torch.no_grad` in its place a recurrence takes its kernels for inference, which pack rows into one:
    fla then counts chunks on the host, and a training step is no CUDA graph.
    """
    state = None if inputs.initial_state is None else inputs.initial_state.detach()
    decay = None if inputs.log_decay is None else inputs.log_decay.detach()
    return replace(inputs.with_tokens(Tensor.detach), log_decay=decay, initial_state=state)


def _solve(inputs: RecurrenceInputs, num_steps: int, recurrence: Recurrence) -> Tensor:
    """(I + H_t)⁻¹ q_t by conjugate gradients."""

    def multiply(p: Tensor) -> Tensor:
        return recurrence(replace(inputs, q=p))[0]

    if inputs.k.shape[1] == 1 and inputs.cu_seqlens is None:
        # One token has one H, which need not be computed anew from the state before it in each step.
        _, covariance = recurrence(inputs)

        def multiply(p: Tensor) -> Tensor:
            return (covariance.unsqueeze(1) * p.unsqueeze(-1)).sum(-2)

    return conjugate_gradients(multiply, inputs.q, num_steps)


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
        x = x + step * direction
        residual = residual - step * (direction + product)
        last, error = error, _dot(residual, residual)
        direction = residual + error / last.clamp_min(tiny) * direction
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
        num_steps: int,
        recurrence: Recurrence,
    ) -> Tensor:
        ctx.save_for_backward(inputs.k, inputs.v, inputs.log_decay, inputs.initial_state)
        ctx.layout = {"cu_seqlens": inputs.cu_seqlens, "token_mask": inputs.token_mask}
        ctx.solve = partial(_solve, num_steps=num_steps, recurrence=recurrence)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> Any:
        k, v, log_decay, state = ctx.saved_tensors
        inputs = RecurrenceInputs(d_x, k, v, log_decay=log_decay, initial_state=state, **ctx.layout)
        with torch.enable_grad():
            return None, ctx.solve(_constant(inputs)), None, None, None

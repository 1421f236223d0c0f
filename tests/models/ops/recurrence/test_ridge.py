"""Ridge regression by conjugate gradients against systems that are solved one by one."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.recurrence import RecurrenceInputs, compute_recurrence
from evalsuite.models.ops.recurrence.ridge import conjugate_gradients, ridge_queries
from tests.models.mixers.native_references import ridge_regression


def draw(rows: int, length: int) -> tuple[Tensor, ...]:
    """q, k [B, T, 2, 16], v [B, T, 2, 5], log decay, β [B, T, 2]; the first four keys of a row are equal."""
    generator = torch.Generator().manual_seed(0)
    q, k, gates = (
        torch.randn(rows, length, 2, width, generator=generator, dtype=torch.float64) for width in (16, 16, 7)
    )
    k[:, :4] = k[:, :1]
    k, v, decay, beta = functional.normalize(k, dim=-1), gates[..., :5], gates[..., 5], gates[..., 6]
    return q, k, v, functional.logsigmoid(3 + decay), beta.sigmoid()


def read(parts: tuple[Tensor, ...], state: Tensor | None = None, steps: int = 40) -> tuple[Tensor, Tensor]:
    """o = Gᵀ (I + H)⁻¹ q, and the final state."""
    q, k, v, log_decay, beta = parts
    values = torch.cat([v, k], -1)
    inputs = RecurrenceInputs(q, beta[..., None] * k, values, log_decay=log_decay, initial_state=state)
    o, last = compute_recurrence(
        RecurrenceInputs(
            ridge_queries(inputs, steps, compute_recurrence), inputs.k, values, log_decay=log_decay,
            initial_state=state,
        )
    )  # fmt: skip
    return o[..., : v.shape[-1]], last


def exact(parts: tuple[Tensor, ...]) -> Tensor:
    identity = torch.eye(16, dtype=torch.float64).expand(2, 16, 16)
    q, k, v, log_decay, beta = parts
    rows = zip(q, k, v, log_decay.exp(), beta, strict=True)
    return torch.stack([ridge_regression(*row, identity) for row in rows])


def test_outputs_and_gradients_are_those_of_the_exact_solution() -> None:
    parts = tuple(x.requires_grad_() for x in draw(2, 75))
    found, wanted = read(parts)[0], exact(parts)
    direction = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs: Iterator[tuple[Tensor, Tensor]] = zip(
        (found, *torch.autograd.grad(found, parts, direction)),
        (wanted, *torch.autograd.grad(wanted, parts, direction)),
        strict=True,
    )
    for ours, theirs in pairs:
        assert (ours - theirs).norm() <= 1e-10 * theirs.norm()


def test_float32_is_exact_to_its_rounding() -> None:
    wanted = exact(draw(2, 75))
    found, _ = read(tuple(x.float() for x in draw(2, 75)), steps=30)
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()


def test_a_state_passes_gradients_on_to_the_tokens_before_it() -> None:
    """Also into a single token, whose system is solved on its state."""
    parts = tuple(x.requires_grad_() for x in draw(2, 20))
    o, state, first = [], None, 0
    for last in (12, 13, 20):
        part, state = read(tuple(x[:, first:last] for x in parts), state)
        o.append(part)
        first = last
    found, wanted = torch.cat(o, 1), read(parts)[0]
    assert (found - wanted).norm() <= 1e-10 * wanted.norm()
    for ours, theirs in zip(
        torch.autograd.grad(found.square().sum(), parts),
        torch.autograd.grad(wanted.square().sum(), parts),
        strict=True,
    ):
        assert (ours - theirs).norm() <= 1e-10 * theirs.norm()


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_chunks_solve_as_one_pass_of_a_recurrence_a_step_does(packed: bool, decays: bool) -> None:
    q, k, _, log_decay, beta = draw(1 if packed else 2, 150)
    mask = torch.arange(150) < torch.tensor([[150], [97]])
    states = torch.randn(3 if packed else 2, 2, 16, 16, generator=torch.Generator().manual_seed(2))
    inputs = RecurrenceInputs(
        q,
        beta[..., None] * k,
        k,
        log_decay=log_decay if decays else None,
        initial_state=states.double() @ states.double().mT,
        cu_seqlens=torch.tensor([0, 70, 71, 150]) if packed else None,
        token_mask=None if packed else mask,
    )
    found, wanted = (
        ridge_queries(inputs, 40, each) for each in (compute_recurrence, partial(compute_recurrence))
    )
    error = (found - wanted)[... if packed else mask]
    assert error.norm() <= 1e-10 * wanted.norm()


@pytest.mark.parametrize("eigenvalues", [(0.0,), (0.0, 3.0), (0.0, 3.0, 500.0)])
def test_as_many_steps_as_eigenvalues_are_exact(eigenvalues: tuple[float, ...]) -> None:
    """One step for H = 0, the layer's linear special case; further steps do no harm, nor do zeros."""
    diagonal = torch.tensor(eigenvalues, dtype=torch.float64).repeat(4)
    q = torch.randn(7, len(diagonal), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q[3] = 0
    for steps in (len(eigenvalues), 100):
        found = conjugate_gradients(lambda p: diagonal * p, q, steps)
        torch.testing.assert_close(found, q / (1 + diagonal), rtol=1e-10, atol=1e-10)


def test_a_state_that_rounding_has_made_indefinite_keeps_the_output_finite() -> None:
    parts = draw(2, 1)
    state = -3.0 * torch.eye(16, dtype=torch.float64).expand(2, 2, 16, 16)
    o, _ = read(parts, torch.cat([torch.ones(2, 2, 16, 5, dtype=torch.float64), state], -1))
    assert torch.isfinite(o).all()


def test_memory_does_not_grow_with_the_steps() -> None:
    """The backward pass solves again instead of storing what each step computes."""

    def stored(steps: int) -> int:
        sizes: list[int] = []
        parts = tuple(x.requires_grad_() for x in draw(1, 20))

        def pack(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            read(parts, steps=steps)[0].sum().backward()
        return sum(sizes)

    assert stored(2) == stored(30)
    # Without a gradient, no product is computed for one.
    calls: list[int] = []

    def counting(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return compute_recurrence(inputs)

    q, k, v, log_decay, beta = draw(1, 20)
    inputs = RecurrenceInputs(q, beta[..., None] * k, torch.cat([v, k], -1), log_decay=log_decay)
    with torch.no_grad():
        ridge_queries(inputs, 5, counting)
    assert len(calls) == 5


def test_training_takes_no_kernel_for_inference() -> None:
    """Those count on the host, which a CUDA graph of a training step cannot record."""
    modes: list[bool] = []

    def noting(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        modes.append(torch.is_grad_enabled())
        return compute_recurrence(inputs)

    q, k, v, log_decay, beta = (x.requires_grad_() for x in draw(1, 20))
    inputs = RecurrenceInputs(q, beta[..., None] * k, torch.cat([v, k], -1), log_decay=log_decay)
    ridge_queries(inputs, 5, noting).sum().backward()
    assert modes == [True] * 11

"""fla's solver of ridge regression: its arguments (with stand-ins, on a CPU) and its results (on a GPU)."""

import importlib
import sys
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.dispatch import kernel_policy
from evalsuite.models.ops.recurrence import RecurrenceInputs, compute_recurrence, ridge
from evalsuite.models.ops.recurrence.ridge import kernel_solves, ridge_queries, solve_ridge
from tests.parity.kernel_accuracy import exact_float32, relative_error

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LN2 = 0.6931471805599453


def draw(length: int, *, packed: bool, width: int = 16, device: str = "cpu", heads: int = 3) -> Any:
    """Inputs [2 or 1, T, H, K] with states; similar keys, of ridges from 0.25 on, and some pads."""
    make = torch.Generator(device).manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, device=device)

    rows, cuts = (1, [0, length // 3, length // 3 + 1, length]) if packed else (2, None)
    sequences = rows if cuts is None else len(cuts) - 1
    k = 2 * functional.normalize(normal(rows, length, heads, width) + normal(width), dim=-1)
    states, gates = normal(sequences, heads, width, width), normal(rows, length, heads, 2)
    mask = torch.ones(rows, length, dtype=torch.bool, device=device)
    mask[:, -2:] = packed
    return RecurrenceInputs(
        q=normal(rows, length, heads, width),
        k=gates[..., :1].sigmoid() * k,
        v=k,
        log_decay=functional.logsigmoid(4 + gates[..., 1]),
        initial_state=states @ states.mT / width,
        cu_seqlens=None if cuts is None else torch.tensor(cuts, device=device),
        token_mask=None if packed else mask,
    )


def chunk_spans(x: Tensor, bounds: Tensor | None) -> list[tuple[int, int, slice]]:
    """Sequence, row and tokens of each chunk."""
    if bounds is not None:
        sequences = [(n, 0, start, end) for n, (start, end) in enumerate(pairwise(bounds.tolist()))]
    else:
        sequences = [(row, row, 0, x.shape[1]) for row in range(x.shape[0])]
    return [
        (n, row, slice(at, min(at + 64, end)))
        for n, row, start, end in sequences
        for at in range(start, end, 64)
    ]


def chunk_local_cumsum(g: Tensor, chunk_size: int, *, scale: float, cu_seqlens: Tensor | None) -> Tensor:
    assert chunk_size == 64
    out = torch.empty_like(g)
    for _, row, tokens in chunk_spans(g, cu_seqlens):
        out[row, tokens] = g[row, tokens].cumsum(0) * scale
    return out


def chunk_fwd_h(k: Tensor, v: Tensor, g: Tensor, h0: Tensor | None, **given: Any) -> tuple[Tensor, None]:
    """States [B, chunks, H, K, V] before each chunk; the decay is one of powers of two."""
    assert given.pop("chunk_size") == 64
    assert given.pop("states_in_fp32")
    assert h0 is not None
    assert all(x.is_contiguous() for x in (k, v, g, h0))
    states, found = h0.clone(), []
    for n, row, tokens in chunk_spans(k, given.pop("cu_seqlens")):
        found.append(states[n].clone())
        left = torch.exp2(g[row, tokens][-1] - g[row, tokens]).unsqueeze(-1)
        added = torch.einsum("thk,thv->hkv", k[row, tokens], v[row, tokens] * left)
        states[n] = states[n] * torch.exp2(g[row, tokens][-1])[:, None, None] + added
    assert not given
    return torch.stack(found).unflatten(0, (k.shape[0], -1)), None


def chunk_mesa_cg_bwd(dq: Tensor, k: Tensor, h: Tensor, **given: Any) -> Tensor:
    """Solve (H + Λ) x = q exactly, for vectors so long that what fla's kernel adds to divisors is nothing."""
    decays, beta, lamb = given["g_local_cumsum"], given["beta"], given["lamb"]
    assert all(x.is_contiguous() for x in (dq, k, h, decays, beta, lamb))
    assert given["max_CG_iteration"] == 30
    norms = dq.norm(dim=-1)
    torch.testing.assert_close(norms, 1024.0 * (norms > 0))
    out, spans = torch.empty_like(dq), chunk_spans(dq, given["cu_seqlens"])
    for (_, row, tokens), before in zip(spans, h.flatten(0, 1), strict=True):
        g, key = decays[row, tokens], k[row, tokens]
        between = torch.exp2(g[:, None] - g[None]) * beta[row, tokens][None]
        weights = between * torch.ones(len(g), len(g)).tril()[..., None]
        covariance = torch.einsum("tjh,jhk,jhl->thkl", weights, key, key)
        covariance = covariance + torch.exp2(g)[..., None, None] * before + torch.diag_embed(lamb)
        out[row, tokens] = torch.linalg.solve(covariance, dq[row, tokens])
    return out


@pytest.mark.parametrize(("packed", "trains"), product([False, True], repeat=2))
def test_arguments_are_those_of_the_same_systems(
    monkeypatch: pytest.MonkeyPatch, packed: bool, trains: bool
) -> None:
    for name, parts in {
        "fla.ops.common.chunk_h": {"chunk_fwd_h": chunk_fwd_h},
        "fla.ops.mesa_net.chunk_cg_solver_bwd": {"chunk_mesa_cg_bwd": chunk_mesa_cg_bwd},
        "fla.ops.utils": {"chunk_local_cumsum": chunk_local_cumsum},
        "fla.ops.utils.constant": {"RCP_LN2": 1 / LN2},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**parts))
    monkeypatch.delitem(sys.modules, "evalsuite.models.ops.recurrence.fla_ridge", raising=False)
    kernel = importlib.import_module("evalsuite.models.ops.recurrence.fla_ridge")
    monkeypatch.delitem(sys.modules, "evalsuite.models.ops.recurrence.fla_ridge")
    inputs = draw(150, packed=packed)
    inputs.q[:, 5] = 0
    inputs.q[:, 6] *= 1e-12
    # As in the layer, whose values are those of G and keys.
    values, states = (torch.cat([x, x], -1)[..., 16:] for x in (inputs.v, inputs.initial_state))
    with torch.set_grad_enabled(trains):
        found = kernel.solve_ridge(replace(inputs, v=values, initial_state=states), 30)
    wanted = solve_ridge.reference(inputs, 30)
    assert found.shape == wanted.shape
    real = inputs.token_mask if inputs.token_mask is not None else ...
    assert relative_error(found[real], wanted[real]) < 1e-5
    assert relative_error(found[:, 6], wanted[:, 6]) < 1e-5
    assert not found[:, 5].any()


def test_the_kernel_solves_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    forms: list[Any] = []
    monkeypatch.setattr(solve_ridge, "proven", lambda *form: forms.append(form) or True)
    inputs, wide = draw(150, packed=False), draw(10, packed=False, width=144)
    assert not kernel_solves(inputs)
    monkeypatch.setattr(ridge, "use_triton", lambda x: x.dtype != torch.float64)
    assert kernel_solves(inputs)
    assert forms == [(inputs.q.device, torch.bfloat16, 16)]
    assert kernel_solves(draw(10, packed=False))
    assert not kernel_solves(wide)
    assert not kernel_solves(replace(inputs, q=inputs.q.double()))
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    assert kernel_solves(draw(10, packed=False, width=64))
    # The proof would compile it, too.
    forms.clear()
    assert not kernel_solves(draw(10, packed=False, width=65))
    assert not forms
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")
    assert kernel_solves(draw(10, packed=False, width=128))
    with torch.no_grad():
        assert kernel_solves(inputs)
        assert not kernel_solves(draw(10, packed=False))


CASES = product([32, 64], [2048, 63], [False, True])


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize(("width", "length", "packed"), [pytest.param(*case, marks=ON_GPU) for case in CASES])
def test_solutions_and_gradients_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, width: int, length: int, packed: bool
) -> None:
    """Of gradients of the size that a mean over a batch has, which the kernel alone would lose."""
    exact_float32(monkeypatch)
    inputs = draw(length, packed=packed, width=width, device="cuda", heads=9)
    names = ("q", "k", "v", "log_decay", "initial_state")
    weights = 1e-6 * torch.randn(inputs.q.shape, device="cuda")
    if inputs.token_mask is not None:
        weights *= inputs.token_mask[..., None, None]
    assert kernel_solves(inputs)
    found = {}
    for policy in ("triton", "torch"):
        leaves = {name: getattr(inputs, name).clone().requires_grad_() for name in names}
        with kernel_policy(policy):
            x = ridge_queries(replace(inputs, **leaves), 30, compute_recurrence)
            x.backward(weights)
        found[policy] = {"x": x.detach() * (weights != 0)} | {name: y.grad for name, y in leaves.items()}
    errors = {name: relative_error(x, found["torch"][name]) for name, x in found["triton"].items()}
    assert max(errors.values()) <= 1e-3, errors


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("width", [pytest.param(width, marks=ON_GPU) for width in (32, 64, 128)])
def test_the_kernel_proves_right_in_tf32(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    with torch.inference_mode():
        off = solve_ridge.deviations(torch.device("cuda"), torch.bfloat16, width)
    assert max(off) < 5e-3

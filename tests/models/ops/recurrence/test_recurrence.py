"""The chunked recurrence against the naive one, for every decay and write rule."""

import itertools
import logging
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.models.ops import dispatch, packages, tuning
from evalsuite.models.ops.dispatch import kernel_policy
from evalsuite.models.ops.numerics import next_power_of_2
from evalsuite.models.ops.recurrence import (
    Erase,
    RecurrenceInputs,
    compute_recurrence,
    naive_recurrent,
    recurrence_matrix,
)
from tests.parity.kernel_accuracy import RULES, draw_case, inputs_of, recurrence, relative_errors

DECAYS = ("none", "head", "scalar", "channel")
CASES = list(itertools.product(DECAYS, RULES))


ERASE = {"additive": (), "delta": (), "generalized": ("read",), "two keys": ("read", "along")}
"""Tensors of `Erase` under each rule."""


def inputs(
    decay: str,
    rule: str,
    *,
    rows: int = 2,
    length: int = 75,
    heads: int = 2,
    width: int = 8,
    value: int = 5,
    strength: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor | float | None]:
    """Random inputs of one transition; keys of length one, so that the delta rule is stable."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    shape = {"head": (heads,), "scalar": (rows, length, heads), "channel": (rows, length, heads, width)}
    return {
        "q": draw(rows, length, heads, width),
        "k": functional.normalize(draw(rows, length, heads, width), dim=-1),
        "v": draw(rows, length, heads, value),
        "log_decay": -strength * draw(*shape[decay]).abs() if decay != "none" else None,
        "beta": 2 * torch.sigmoid(draw(rows, length, heads)) if rule == "delta" else None,
        "scale": 0.4,
        **{name: functional.normalize(draw(rows, length, heads, width), dim=-1) for name in ERASE[rule]},
    }


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).norm() <= tolerance * wanted.norm().clamp_min(1e-12)


@pytest.mark.parametrize(("decay", "rule"), CASES)
@pytest.mark.parametrize("length", [2, 64, 75])
def test_chunked_equals_naive(decay: str, rule: str, length: int) -> None:
    case = inputs(decay, rule, length=length)
    start = torch.randn(2, 2, 8, 5, dtype=torch.float64)
    found, state = recurrence(**case, initial_state=start)
    wanted, last = naive_recurrent(inputs_of(**case, initial_state=start))
    close(found, wanted, 1e-12)
    close(state, last, 1e-12)


@pytest.mark.parametrize(("decay", "rule"), CASES)
def test_packed_equals_each_sequence_alone(decay: str, rule: str) -> None:
    case = inputs(decay, rule, rows=1)
    bounds = torch.tensor([0, 3, 3, 70, 75])
    start = torch.randn(4, 2, 8, 5, dtype=torch.float64)
    found, states = recurrence(**case, initial_state=start, cu_seqlens=bounds)
    for n, (first, last) in enumerate([(0, 3), (3, 3), (3, 70), (70, 75)]):
        if first == last:
            close(states[n], start[n], 0)
            continue
        alone = {
            name: x[:, first:last] if isinstance(x, Tensor) and x.dim() > 1 else x for name, x in case.items()
        }
        wanted, state = recurrence(**alone, initial_state=start[n : n + 1])
        close(found[:, first:last], wanted, 1e-12)
        close(states[n : n + 1], state, 1e-12)


@pytest.mark.parametrize("decay", DECAYS)
def test_the_delta_rule_is_a_case_of_the_generalized_one(decay: str) -> None:
    """a = β k ⊙ D and a write of β v: both rules then remove β k kᵀ D S."""
    case = inputs(decay, "delta")
    delta = inputs_of(**case)
    strength, log_decay = case["beta"].unsqueeze(-1), delta.decay_per_token
    decays = 1.0 if log_decay is None else log_decay.view(*log_decay.shape[:3], -1).exp()
    apart = replace(delta, beta=None, v=delta.v * strength, erase=Erase(delta.k * strength * decays))
    for found, wanted in zip(compute_recurrence(apart), compute_recurrence(delta), strict=True):
        close(found, wanted, 1e-12)


@pytest.mark.parametrize(("decay", "rule"), CASES)
def test_padding_leaves_the_state_alone(decay: str, rule: str) -> None:
    inner = inputs_of(**inputs(decay, rule, length=9))
    real = torch.tensor([[True] * 9, [False] * 3 + [True] * 5 + [False]])
    _, last = compute_recurrence(replace(inner, token_mask=real))
    cut = inner.with_tokens(lambda x: x[1:, 3:8])
    close(last[1:], compute_recurrence(cut)[1], 1e-12)


@pytest.mark.parametrize(("decay", "rule"), CASES)
def test_matrix_times_values_equals_output(decay: str, rule: str) -> None:
    case = inputs(decay, rule)
    wanted, _ = recurrence(**case)
    weights, values = recurrence_matrix(inputs_of(**case)), case["v"]
    assert torch.equal(weights, weights.tril())
    close((weights @ values.transpose(1, 2)).transpose(1, 2), wanted, 1e-12)


@pytest.mark.parametrize(("decay", "rule"), CASES)
def test_gradients_against_finite_differences(decay: str, rule: str) -> None:
    case = inputs(decay, rule, rows=1, length=7, heads=1, width=3, value=2)
    start = torch.randn(2, 1, 3, 2, dtype=torch.float64)
    bounds = torch.tensor([0, 2, 7])
    names = [name for name, x in case.items() if isinstance(x, Tensor)]

    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        changed = {**case, **dict(zip(names, tensors, strict=False))}
        return recurrence(**changed, initial_state=tensors[-1], cu_seqlens=bounds)

    tensors = [case[name].requires_grad_() for name in names] + [start.requires_grad_()]
    assert torch.autograd.gradcheck(call, tensors)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", ["scalar", "channel"])
def test_strong_decay_stays_finite(decay: str, rule: str) -> None:
    """A log decay of −60 per token overflows float32 within two tokens if its negative is exponentiated."""
    case = inputs(decay, rule, strength=60.0, dtype=torch.float32)
    tensors = [case[name].requires_grad_() for name in ("q", "k", "v", "log_decay", *ERASE[rule])]
    found, state = recurrence(**case)
    wanted, _ = naive_recurrent(inputs_of(**case))
    close(found.detach(), wanted.detach(), 1e-4)
    gradients = torch.autograd.grad(found.sum() + state.sum(), tensors)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_state_is_float32_for_bfloat16_inputs() -> None:
    case = inputs("scalar", "delta", dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, state = recurrence(**case)
    assert (found.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    exact = {name: x.float() if isinstance(x, Tensor) else x for name, x in case.items()}
    close(state, recurrence(**exact)[1], 1e-5)


def test_wrong_shapes_are_named() -> None:
    case = inputs("none", "additive")
    with pytest.raises(ConfigError, match=r"initial_state has shape \(1, 2, 8, 5\).*\(2, 2, 8, 5\)"):
        recurrence(**case, initial_state=torch.zeros(1, 2, 8, 5))
    with pytest.raises(ConfigError, match="log_decay has shape"):
        recurrence(**{**case, "log_decay": torch.zeros(3)})
    with pytest.raises(ConfigError, match=r"erase\.along has shape \(1,\); expected \(2, 75, 2, 8\)"):
        recurrence(**case, read=case["k"], along=torch.zeros(1))
    with pytest.raises(ConfigError, match="beta and erase are two rules"):
        recurrence(**{**case, "beta": torch.zeros(2, 75, 2)}, read=case["k"])
    with pytest.raises(ConfigError, match="2 rows"):
        recurrence(**case, cu_seqlens=torch.tensor([0, 75]))


def test_an_unknown_or_impossible_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="known: auto, torch, triton"), kernel_policy("fla"):  # type: ignore[arg-type]
        pass
    if not torch.cuda.is_available():
        with pytest.raises(MissingDependencyError, match="no CUDA device"), kernel_policy("triton"):
            pass


def test_the_choice_on_cuda_is_logged_once_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "_messages", set())
    monkeypatch.setattr(tuning, "_active", None)
    monkeypatch.setattr(
        tuning, "install", lambda: monkeypatch.setattr(tuning, "_active", tuning.KernelTuning([]))
    )
    monkeypatch.setattr(dispatch, "_runs_on_cuda", dispatch._runs_on_cuda.__wrapped__)
    on_cuda: Any = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)
    monkeypatch.setattr(packages, "unavailable_reason", lambda: "the package fla is not installed")
    with caplog.at_level(logging.WARNING, "evalsuite"):
        assert not dispatch.use_triton(on_cuda)
        assert not dispatch.use_triton(on_cuda)
    assert len(caplog.messages) == 1
    assert "torch on cuda (the package fla is not installed)" in caplog.messages[0]
    monkeypatch.setattr(packages, "unavailable_reason", lambda: "")
    monkeypatch.setattr(packages, "version", lambda: "flash-linear-attention 0.6.0")
    assert dispatch.use_triton(on_cuda)
    assert "kernels: triton (flash-linear-attention 0.6.0)" in dispatch.backend_messages()
    assert caplog.messages[1:] == ["kernels: triton (flash-linear-attention 0.6.0)"]
    with kernel_policy("torch"):
        assert not dispatch.use_triton(on_cuda)
    with pytest.raises(MissingDependencyError, match="needs CUDA tensors, not cpu"), kernel_policy("triton"):
        recurrence(**inputs("none", "additive"))


def naive_packed(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Run each packed sequence separately."""
    assert inputs.cu_seqlens is not None
    assert inputs.initial_state is not None
    bounds = itertools.pairwise(inputs.cu_seqlens.tolist())
    parts = [
        inputs.with_tokens(
            partial(torch.narrow, dim=1, start=start, length=end - start),
            initial_state=state[None],
            cu_seqlens=None,
        )
        for (start, end), state in zip(bounds, inputs.initial_state, strict=True)
    ]
    outputs, states = zip(*map(naive_recurrent, parts), strict=True)
    return torch.cat(outputs, 1), torch.cat(states)


@pytest.mark.parametrize(("decay", "rule"), CASES)
def test_kernel_accuracy_detects_errors(decay: str, rule: str) -> None:
    case = draw_case(decay, rule, dtype=torch.float32, width=8, length=20, packed=True, device="cpu")  # type: ignore[arg-type]
    correct = relative_errors(naive_packed, *case)
    assert {"o", "state", "dq", "dk", "dv", "dinitial_state"} <= set(correct)
    assert ("dbeta" in correct) == (rule == "delta")
    assert max(correct.values()) < 1e-5

    def wrong(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        return naive_packed(replace(inputs, k=inputs.k.detach()))

    with pytest.raises(AssertionError):
        relative_errors(wrong, *case)
    scaled = relative_errors(lambda inputs: naive_packed(replace(inputs, k=1.1 * inputs.k)), *case)
    assert min(scaled[name] for name in ("o", "state", "dk")) > 0.01


def test_next_power_of_2() -> None:
    for size in range(1, 300):
        assert next_power_of_2(size) == 2 ** math.ceil(math.log2(size))

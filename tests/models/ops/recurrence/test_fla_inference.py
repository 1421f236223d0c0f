"""Inference kernels: their arguments (with stand-ins, on a CPU) and their results (on a GPU)."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.recurrence import (
    Erase,
    RecurrenceInputs,
    StateAccess,
    compute_recurrence,
    fla_backend,
    last_kernels,
    op,
)
from evalsuite.models.ops.recurrence.chunked import chunked
from tests.parity.kernel_accuracy import RULES

CASES = list(itertools.product(("none", "head", "scalar", "channel"), RULES))
FLA_CASES = [(decay, rule) for decay, rule in CASES if rule in ("additive", "delta")]
"""Those with a kernel of fla's."""


def draw(decay: str, rule: str, length: int, *, device: str = "cpu") -> RecurrenceInputs:
    make = torch.Generator(device).manual_seed(length)
    shape = (3, length, 2, 16)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=make, device=device)

    shapes = {"head": (2,), "scalar": shape[:3], "channel": shape}
    read, along = functional.normalize(normal(2, *shape), dim=-1)
    return RecurrenceInputs(
        q=functional.normalize(normal(*shape), dim=-1),
        k=functional.normalize(normal(*shape), dim=-1),
        v=normal(*shape),
        log_decay=None if decay == "none" else functional.logsigmoid(normal(*shapes[decay]) + 2),
        beta=torch.sigmoid(normal(*shape[:3])) if rule == "delta" else None,
        scale=0.25,
        initial_state=normal(3, 2, 16, 16),
        erase=None if rule in ("additive", "delta") else Erase(read, along if rule == "two keys" else None),
    )


def one_row(inputs: RecurrenceInputs, row: int, padding: int = 0) -> RecurrenceInputs:
    """A row without its first tokens."""

    def cut(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.dim() == 1 else x[row : row + 1, padding:]

    parts: dict[str, Any] = {
        name: cut(getattr(inputs, name)) for name in ("q", "k", "v", "log_decay", "beta")
    }
    parts["erase"] = None if inputs.erase is None else inputs.erase.map(lambda x: x[row : row + 1, padding:])
    assert inputs.initial_state is not None
    return replace(inputs, **parts, initial_state=inputs.initial_state[row : row + 1], token_mask=None)


@pytest.mark.parametrize(("decay", "rule"), FLA_CASES)
@pytest.mark.parametrize(
    "length", [1, fla_backend.MAX_RECURRENT_LENGTH, fla_backend.MAX_RECURRENT_LENGTH + 1]
)
def test_rows_are_packed_into_one_row(
    monkeypatch: pytest.MonkeyPatch, decay: Any, rule: str, length: int
) -> None:
    seen = []

    def stand_in(kernel: fla_backend.Kernel) -> Any:
        def call(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
            seen.append((kernel.name, q.shape[0]))
            assert given.pop("output_final_state")
            found = given.pop(kernel.keyword, None) if kernel.keyword else None
            return chunked(RecurrenceInputs(q, k, v, log_decay=found, **given))

        return call

    monkeypatch.setattr(fla_backend, "_function", stand_in)
    inputs = draw(decay, rule, length)
    kernel = fla_backend.inference_kernel_for(
        decay, delta=rule == "delta", dtype=torch.float32, length=length
    )
    o, state = fla_backend.run_rows(kernel, inputs)
    wanted, last = chunked(inputs)
    torch.testing.assert_close(o, wanted)
    torch.testing.assert_close(state, last)
    ((name, rows),) = seen
    assert name.startswith("fused_recurrent") == (length <= fla_backend.MAX_RECURRENT_LENGTH)
    assert rows == (3 if length <= fla_backend.MAX_RECURRENT_LENGTH else 1)


@pytest.mark.parametrize(("decay", "rule"), CASES)
def test_short_rows_without_gradients_run_on_the_kernel_for_them(
    monkeypatch: pytest.MonkeyPatch, decay: Any, rule: str
) -> None:
    forms, places = [], []

    def proven(device: torch.device, dtype: torch.dtype, *form: Any) -> bool:
        forms.append(form)
        return True

    def stand_in(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        places.append(inputs.access.in_place)
        return chunked(inputs)

    monkeypatch.setattr(op.recurrent, "proven", proven)
    monkeypatch.setattr(op.recurrent, "load", lambda kind: stand_in)
    monkeypatch.setattr("evalsuite.models.ops.recurrence.op.use_triton", lambda x: True)
    monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
    monkeypatch.setattr(fla_backend, "scalar_decay_backward_broken", lambda: False)
    monkeypatch.setattr(fla_backend, "run", lambda kernel, inputs: chunked(inputs))
    longest = fla_backend.MAX_RECURRENT_LENGTH
    for length, in_place in ((1, True), (longest, False), (longest + 1, True)):
        inputs = draw(decay, rule, length)
        with torch.no_grad():
            found = compute_recurrence(replace(inputs, access=StateAccess(in_place=in_place)))
        name = list(last_kernels().values())[-1]
        assert (name == "recurrent") == (length <= longest)
        assert (name == "torch chunked") == (length > longest and inputs.erase is not None)
        wanted = compute_recurrence(inputs)
        for actual, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(actual, expected)
    assert places == [True, False]
    assert forms == [(decay, inputs.rule, rule == "two keys")] * 2
    # Nor do packed rows, or keys that do not fit.
    first = one_row(draw(decay, rule, 1), 0)
    with torch.no_grad():
        compute_recurrence(replace(first, cu_seqlens=torch.tensor([0, 1])))
        monkeypatch.setattr(fla_backend, "MAX_KEY_DIM", 8)
        compute_recurrence(first)
    assert len(places) == 2


@pytest.mark.parametrize(("decay", "rule"), CASES)
@pytest.mark.parametrize("needs_gradients", [False, True])
def test_kernels_of_padded_rows_take_the_decay_that_padding_gives(
    monkeypatch: pytest.MonkeyPatch, decay: Any, rule: str, needs_gradients: bool
) -> None:
    seen = []

    def stand_in(kernel: fla_backend.Kernel, inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        if kernel.keyword:
            fla_backend.broadcast_decay(inputs.log_decay, kernel.decay_shape, inputs.k)
        seen.append(kernel.name)
        return chunked(inputs)

    monkeypatch.setattr("evalsuite.models.ops.recurrence.op.use_triton", lambda x: True)
    monkeypatch.setattr(fla_backend, "scalar_decay_backward_broken", lambda: False)
    monkeypatch.setattr(fla_backend, "run", stand_in)
    length = fla_backend.MAX_RECURRENT_LENGTH + 2
    inputs = draw(decay, rule, length)
    real = torch.arange(length) >= torch.tensor([0, 1, length - 2])[:, None]
    with torch.set_grad_enabled(needs_gradients):
        o, state = compute_recurrence(replace(inputs, token_mask=real))
    assert len(seen) == (inputs.erase is None)
    for row, padding in enumerate((0, 1, length - 2)):
        wanted, last = chunked(one_row(inputs, row, padding))
        torch.testing.assert_close(o[row : row + 1, padding:], wanted, rtol=1e-4, atol=1e-5)
        # Two keys without decay amplify rounding, which differs between processors.
        torch.testing.assert_close(state[row : row + 1], last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", ["generalized", "two keys"])
def test_the_generalized_rule_never_runs_on_kernels_of_fla(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    monkeypatch.setattr("evalsuite.models.ops.recurrence.op.use_triton", lambda x: True)
    monkeypatch.setattr(fla_backend, "run", None)
    for length, gradients in itertools.product((1, 2, fla_backend.MAX_RECURRENT_LENGTH + 1), (False, True)):
        inputs = draw("channel", rule, length)
        with torch.set_grad_enabled(gradients):
            found = compute_recurrence(inputs)
        for actual, expected in zip(found, chunked(inputs), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("decay", "rule"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_match_torch(decay: Any, rule: str, dtype: torch.dtype) -> None:
    # Chunked kernels take minutes to compile in float32; two kernels represent all of them.
    chunked_too = dtype == torch.bfloat16 and decay == "scalar"
    for length in (1, 7, 64, *([fla_backend.MAX_RECURRENT_LENGTH + 2] if chunked_too else [])):
        inputs = draw(decay, rule, length, device="cuda")
        inputs = replace(inputs, q=inputs.q.to(dtype), k=inputs.k.to(dtype), v=inputs.v.to(dtype))
        with torch.inference_mode():
            found = compute_recurrence(inputs)
            wanted = chunked(inputs)
        for actual, expected in zip(found, wanted, strict=True):
            bound = 2e-2 if dtype == torch.bfloat16 else 1e-5
            error = (actual.float() - expected.float()).norm() / expected.float().norm()
            assert error <= bound, (length, float(error))

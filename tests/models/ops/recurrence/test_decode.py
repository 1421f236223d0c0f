"""The token-by-token kernel computes the recurrence, in every form, in place too.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs, StateAccess, naive_recurrent
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE
from tests.parity.kernel_accuracy import RULES

FORMS = list(itertools.product(("none", "head", "scalar", "channel"), RULES))

pytestmark = NEEDS_DEVICE


def draw(
    decay: str,
    rule: str,
    rows: int = 2,
    length: int = 1,
    heads: int = 3,
    keys: int = 16,
    values: int = 40,
    dtype: torch.dtype = torch.float32,
) -> RecurrenceInputs:
    """Random inputs; keys of length one, so that the delta rule is stable."""
    torch.manual_seed(length)
    q, k = torch.randn(2, rows, length, heads, keys, device=DEVICE)
    gates = torch.rand(rows, length, heads, keys, device=DEVICE)
    log_decay = {"none": None, "head": gates[0, 0, :, 0], "scalar": gates[..., 0], "channel": gates}[decay]
    erase = None
    if rule in ("generalized", "two keys"):
        read, along = functional.normalize(torch.randn(2, *k.shape, device=DEVICE), dim=-1).to(dtype)
        erase = Erase(read, along if rule == "two keys" else None)
    return RecurrenceInputs(
        q=q.to(dtype),
        k=functional.normalize(k, dim=-1).to(dtype),
        v=torch.randn(rows, length, heads, values, device=DEVICE).to(dtype),
        log_decay=None if log_decay is None else log_decay.log(),
        beta=2 * gates[..., 1] if rule == "delta" else None,
        erase=erase,
        scale=0.3,
        initial_state=torch.randn(rows, heads, keys, values, device=DEVICE),
    )


def compare(inputs: RecurrenceInputs, tolerance: float = 1e-5, in_place: bool = False) -> None:
    from evalsuite.models.ops.recurrence.decode import recurrent

    tensors = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    doubled = {name: x.double() for name, x in tensors.items() if isinstance(x, Tensor)}
    erase = None if inputs.erase is None else inputs.erase.map(Tensor.double)
    exact = replace(inputs, **doubled | {"token_mask": inputs.token_mask, "erase": erase})
    expected = naive_recurrent(exact.plain())
    if inputs.token_mask is not None:
        expected[0].mul_(inputs.token_mask[..., None, None])
    o, state = recurrent(replace(inputs, access=StateAccess(in_place=in_place)))
    assert o.dtype == inputs.v.dtype
    assert state.dtype == torch.float32
    assert (state is inputs.initial_state) == in_place
    for mine, theirs, bound in zip((o, state), expected, (tolerance, 1e-5), strict=True):
        assert mine.shape == theirs.shape
        error = (mine.double() - theirs).norm() / theirs.norm()
        assert error < bound, error


def assert_equal_but_for_rounding(mine: Tensor, theirs: Tensor) -> None:
    """Pages that are not aligned are read in narrower pieces on a GPU, which sums in another order."""
    assert torch.equal(mine, theirs) if INTERPRETED else (mine - theirs).norm() < 1e-6 * theirs.norm()


@pytest.mark.parametrize(("decay", "rule"), FORMS)
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("in_place", [True, False])
def test_every_form(decay: str, rule: str, length: int, in_place: bool) -> None:
    compare(draw(decay, rule, length=length), in_place=in_place)


@pytest.mark.parametrize(("decay", "rule"), FORMS)
@pytest.mark.parametrize("length", [1, 3])
def test_states_in_slots_that_lie_apart(decay: str, rule: str, length: int) -> None:
    from evalsuite.models.ops.recurrence.decode import recurrent

    inputs = draw(decay, rule, length=length, keys=16, values=20)
    # Pages that hold something else as well, as those of a server.
    pages = torch.randn(6, 7 + 3 * 16 * 20, device=DEVICE)
    states = pages[:, 4:-3].view(6, 3, 16, 20)
    slots = torch.tensor([4, 1], device=DEVICE)
    alone = recurrent(replace(inputs, initial_state=states[slots]))
    before, inputs = pages.clone(), replace(inputs, initial_state=states)
    o, _ = recurrent(replace(inputs, access=StateAccess(slots, discards=True)))
    assert_equal_but_for_rounding(o, alone[0])
    assert torch.equal(pages, before)
    o, returned = recurrent(replace(inputs, access=StateAccess(slots)))
    assert returned is states
    assert_equal_but_for_rounding(o, alone[0])
    assert_equal_but_for_rounding(states[slots], alone[1])
    states[slots] = before[:, 4:-3].view(6, 3, 16, 20)[slots]
    assert torch.equal(pages, before)


@pytest.mark.parametrize(("decay", "rule"), FORMS)
@pytest.mark.parametrize("starts", [True, False])
def test_padding_leaves_the_state_alone(decay: str, rule: str, starts: bool) -> None:
    inputs = draw(decay, rule, rows=4, length=5)
    # On the right, on the left, none, and all.
    masks = [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1] * 5, [0] * 5]
    real = torch.tensor(masks, device=DEVICE).bool()
    inputs = replace(inputs, token_mask=real)
    if starts:
        assert inputs.initial_state is not None
        inputs.initial_state[:3] = 0
        inputs.initial_state[3] = 1
    # Whatever padding holds is not read.
    for x in (inputs.q, inputs.v):
        x[~real] = 1e30
    compare(inputs)


@pytest.mark.parametrize(
    ("keys", "values"), [(5, 3), (64, 65), (80, 32)] + [(256, 128), (128, 257)] * (not INTERPRETED)
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_widths_and_dtypes(keys: int, values: int, dtype: torch.dtype) -> None:
    # The interpreter truncates to bfloat16.
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for decay, rule in itertools.product(("scalar", "channel"), RULES[1:]):
        compare(draw(decay, rule, keys=keys, values=values, length=2, dtype=dtype), tolerance, in_place=True)


def test_rows_start_from_zeros() -> None:
    inputs = replace(draw("scalar", "delta", length=4), initial_state=None)
    expected = naive_recurrent(inputs)
    from evalsuite.models.ops.recurrence.decode import recurrent

    for in_place in (False, True):
        found = recurrent(replace(inputs, access=StateAccess(in_place=in_place)))
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_inputs_that_lie_apart() -> None:
    inputs = draw("channel", "delta", length=3)
    apart: dict[str, Any] = {}
    for name in ("q", "k", "v", "log_decay"):
        x = getattr(inputs, name)
        wide = torch.randn(2, 3, 6, 2 * x.shape[-1], device=DEVICE)
        wide[:, :, ::2, : x.shape[-1]] = x
        apart[name] = wide[:, :, ::2, : x.shape[-1]]
    apart["v"] = apart["v"].mT.contiguous().mT
    assert inputs.beta is not None
    assert inputs.initial_state is not None
    inputs = replace(inputs, **apart, beta=inputs.beta.mT.contiguous().mT)
    compare(replace(inputs, initial_state=inputs.initial_state[:1].expand(2, -1, -1, -1)))
    compare(replace(inputs, initial_state=torch.randn(2, 3, 40, 16, device=DEVICE).mT))


def test_a_state_that_is_not_contiguous_is_not_written() -> None:
    from evalsuite.models.ops.recurrence.decode import recurrent

    inputs = draw("scalar", "delta")
    assert inputs.initial_state is not None
    stored = inputs.initial_state[:1].expand(2, -1, -1, -1)
    before = stored.clone()
    _, state = recurrent(replace(inputs, initial_state=stored, access=StateAccess(in_place=True)))
    assert state.data_ptr() != stored.data_ptr()
    assert torch.equal(stored, before)


@pytest.mark.parametrize("mixer", ["gated_deltanet", "linear_attention"])
def test_steps_write_into_their_slots(mixer: str, make_teacher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.models import build_student
    from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
    from evalsuite.models.inference.sampling import SamplingMetadata
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.inference.torch.scheduler import DecodeBatch
    from evalsuite.models.inference.torch.static_cache import _StaticLayer
    from evalsuite.models.ops.dispatch import Op
    from evalsuite.models.ops.recurrence import decode as module

    student = build_student(make_teacher("llama"), [mixer] * 2).eval().to(DEVICE)
    runner = ModelRunner(student)
    calls, right = [], module.recurrent
    monkeypatch.setattr(
        module,
        "recurrent",
        lambda inputs: calls.append(inputs.access.in_place) or right(inputs),
    )
    copied, write = [], _StaticLayer.write

    def record(self: _StaticLayer, state: dict[str, Tensor]) -> None:
        copied.extend(new is not self._recurrent[name] for name, new in state.items())
        write(self, state)

    monkeypatch.setattr(_StaticLayer, "write", record)
    found: dict[bool, list[Tensor]] = {True: [], False: []}
    for fused, kept in found.items():
        monkeypatch.setattr(Op, "proven", lambda *_, fused=fused: fused)
        if INTERPRETED:
            for name in ("ops.dispatch", "ops.recurrence.op"):
                monkeypatch.setattr(f"evalsuite.models.{name}.use_triton", lambda x, fused=fused: fused)
        with torch.inference_mode():
            _, cache = runner.prefill([[5, 6, 7, 8, 9], [11], [20, 21, 22]], keep=True)
            assert cache is not None
            calls.clear()
            copied.clear()
            sampling = SamplingMetadata.allocate(
                4, [GenerateRequest((5,), SamplingParams(4))], torch.device(DEVICE)
            )
            batch = DecodeBatch(runner, cache, sampling, 4, 64)
            batch.cache.write(range(3), cache)
            for layer in batch.cache.layers:
                for tensor in layer.recurrent.values():
                    tensor[3] = 7
            for token in (30, 31):
                batch.token.fill_(token)
                kept.append(batch.read(3, 64))
            states = [tensor for layer in batch.cache.layers for tensor in layer.tensors()]
            # A slot that does not take part is left alone.
            assert all((tensor[3] == 7).all() for tensor in states)
            kept += [tensor[:3].clone() for tensor in states]
        assert calls == ([True] * 4 if fused else [])
        # State and convolutions of two layers, twice.
        assert copied == [not fused] * 8
    for mine, plain in zip(*found.values(), strict=True):
        error = (mine.double() - plain.double()).norm() / plain.double().norm()
        assert error < (1e-4 if INTERPRETED else 1e-3), error

"""Kernels of recurrent layers without gradients compute what the operations do that they replace.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from evalsuite.models.mixers.convolution import convolve
from evalsuite.models.ops import reference
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize(
    ("width", "dtype", "weighted"),
    [
        (16, torch.float32, False),
        (64, torch.float16, True),
        (80, torch.float16, False),
        (256, torch.float32, True),
    ],
)
def test_norms_of_heads(width: int, dtype: torch.dtype, weighted: bool) -> None:
    from evalsuite.models.ops.inference.recurrent_layers import head_norm, head_norms

    torch.manual_seed(0)
    # More rows than one program computes, and not a multiple of them.
    x = (torch.randn(3, 7, 5, width, device=DEVICE) * 3).to(dtype)
    weight = torch.randn(width, device=DEVICE).to(dtype) if weighted else None
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    exact = exact * (0.125 if weight is None else weight.double())
    found = head_norm(x, weight, 1e-6, 0.125)
    tolerance = 2**-9 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=1e-6)
    # Two of different sizes together, the smaller one in any place.
    for parts in ((x, x[:1, :, 1:3]), (x[:, :1], x)):
        alone = [head_norm(part, weight, 1e-6, 0.125) for part in parts]
        for mine, theirs in zip(head_norms(parts, weight, 1e-6, 0.125), alone, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("rows", "length", "heads", "width", "angles"),
    [
        (3, 1, 9, 64, "of each row"),
        (2, 5, 3, 48, "of each row"),
        (2, 5, 2, 16, "the same"),
        (3, 2, 4, 8, "expanded"),
        (1, 3, 70, 64, "in float32"),
        (2, 3, 2, 16, "transposed"),
    ]
    + [(4, 300, 9, 64, "of each row"), (2, 33, 70, 256, "the same")] * (not INTERPRETED),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rotary_rounds_as_separate_operations_do(
    rows: int, length: int, heads: int, width: int, angles: str, dtype: torch.dtype
) -> None:
    from evalsuite.models.ops.inference.recurrent_layers import rotary

    torch.manual_seed(0)
    # Some channels of the heads of one of two joined projections.
    joined = torch.randn(rows, length, 2 * heads, width + 8, device=DEVICE).to(dtype)
    x = joined[:, :, heads:, :width]
    cos, sin = torch.randn(2, rows if angles == "of each row" else 1, length, width, device=DEVICE).to(
        torch.float32 if angles == "in float32" else dtype
    )
    if angles == "expanded":
        cos = cos.expand(rows, -1, -1)
    elif angles == "transposed":
        x, cos, sin = (each.mT.contiguous().mT for each in (x, cos, sin))
    # The interpreter truncates to bfloat16.
    tolerance = 2**-6 if INTERPRETED and dtype == torch.bfloat16 else 0.0
    found, expected = rotary(x, cos, sin), reference.rotary(x, cos, sin)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=2 * tolerance)


def test_layers_rotate_a_part_of_the_channels_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.models.mixers.layers import apply_rotary_pos_emb
    from evalsuite.models.ops.inference import recurrent_layers

    monkeypatch.setattr(recurrent_layers, "applies", lambda x: True)
    if INTERPRETED:
        monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
    calls, right = [], recurrent_layers.rotary
    monkeypatch.setattr(recurrent_layers, "rotary", lambda *given: calls.append(1) or right(*given))
    x, (cos, sin) = torch.randn(2, 3, 4, 12, device=DEVICE), torch.randn(2, 2, 3, 8, device=DEVICE)
    expected = torch.cat([reference.rotary(x[..., :8], cos, sin), x[..., 8:]], -1)
    for graph, count in ((torch.enable_grad(), 0), (torch.no_grad(), 1)):
        with graph:
            torch.testing.assert_close(apply_rotary_pos_emb(x, cos, sin), expected, rtol=0, atol=0)
        assert len(calls) == count


@pytest.mark.parametrize(
    ("length", "taps", "widths", "activated"),
    [(1, 4, (80, 16, 70), 2), (2, 4, (48,), 0), (37, 2, (80, 80), 2)]
    + [(300, 4, (64, 32, 192), 3)] * (not INTERPRETED),
)
@pytest.mark.parametrize("case", ["start", "continued", "right pads", "left pads"])
def test_convolutions_and_their_states(
    length: int, taps: int, widths: tuple[int, ...], activated: int, case: str
) -> None:
    from evalsuite.models.ops.inference.recurrent_layers import short_conv_step

    torch.manual_seed(0)
    rows, channels = 4, sum(widths)
    x = torch.randn(rows, length, channels, device=DEVICE)
    weight = torch.randn(channels, taps, device=DEVICE)
    state = torch.randn(rows, channels, taps - 1, device=DEVICE) if case == "continued" else None
    token_mask = None
    if "pads" in case:
        real = torch.tensor([length, length // 2, 1, 0], device=DEVICE)[:, None]
        token_mask = torch.arange(length, device=DEVICE) < real
        token_mask = token_mask.flip(1) if case == "left pads" else token_mask
    after = torch.full((rows, channels, taps - 1), torch.nan, device=DEVICE)
    # Parts of a projection that has others, too, and of tensors of their own.
    joined = torch.cat([x, torch.full_like(x[..., :5], torch.nan)], -1)
    parts = joined[..., :channels].split(widths, -1), weight.split(widths)
    found = short_conv_step(*parts, token_mask, state, after, num_activated=activated)
    apart = [each.contiguous() for each in parts[0]]
    for mine, theirs in zip(
        found,
        short_conv_step(apart, parts[1], token_mask, state, torch.empty_like(after), num_activated=activated),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    clean = x if token_mask is None else x * token_mask[..., None]
    expected, last = convolve(clean, weight, sum(widths[:activated]), state, token_mask, None)
    torch.testing.assert_close(torch.cat(found, -1), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, last)
    if state is not None:
        other = torch.empty_like(after)
        again = short_conv_step(*parts, None, state.mT.contiguous().mT, other, num_activated=activated)
        assert torch.equal(torch.cat(again, -1), torch.cat(found, -1))
        assert torch.equal(other, after)
    if state is not None and length == 1:
        pages = torch.randn(6, state[0].numel() + 5, device=DEVICE)
        stored, slots = pages[:, 2:-3].view(6, *state.shape[1:]), torch.tensor([5, 0, 3, 1], device=DEVICE)
        stored[slots] = state
        others = pages.clone()
        again = short_conv_step(*parts, None, stored, stored, slots=slots, num_activated=activated)
        assert torch.equal(torch.cat(again, -1), torch.cat(found, -1))
        assert torch.equal(stored[slots], after)
        stored[slots] = state
        assert torch.equal(pages, others)
        again = short_conv_step(*parts, None, state, state, num_activated=activated)
        assert torch.equal(torch.cat(again, -1), torch.cat(found, -1))
        assert torch.equal(state, after)


@pytest.mark.parametrize("most", [1.0, 2.0])
def test_gates_of_the_delta_rule(most: float) -> None:
    from evalsuite.models.ops.inference.recurrent_layers import delta_gates

    torch.manual_seed(0)
    # Rows lie apart, as those of a projection that was padded.
    a, b = torch.randn(2, 3, 50, 16, device=DEVICE)[..., :9] * 20
    bias, rate = torch.randn(2, 9, device=DEVICE)
    log_decay, beta = delta_gates(a, b, bias, rate, most)
    expected = -rate.double().exp() * functional.softplus((a + bias).double(), threshold=1000)
    torch.testing.assert_close(log_decay.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(beta, most * b.sigmoid(), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16][: 1 if INTERPRETED else None]
)
def test_the_kernels_prove_themselves(dtype: torch.dtype) -> None:
    from evalsuite.models.ops.inference import recurrent_layers

    found = max(recurrent_layers._deviations(torch.device(DEVICE), dtype))
    assert found < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype], found
    assert recurrent_layers._proven(torch.device(DEVICE), dtype)


@pytest.mark.parametrize(
    "name", ["rotary", "head_norm", "short_conv_step", "delta_gates"][: 2 if INTERPRETED else None]
)
@pytest.mark.parametrize("words", ["off by", "does not compile"])
def test_a_kernel_that_fails_is_not_used(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from evalsuite.models.ops.inference import recurrent_layers

    right = getattr(recurrent_layers, name)

    def wrong(*arguments: Any, **options: Any) -> Any:
        if words == "does not compile":
            raise RuntimeError(words)
        found = right(*arguments, **options)
        return found + 1 if isinstance(found, torch.Tensor) else [each + 1 for each in found]

    recurrent_layers._proven.cache_clear()
    monkeypatch.setattr("evalsuite.models.ops.dispatch._messages", set())
    monkeypatch.setattr(recurrent_layers, name, wrong)
    assert not recurrent_layers._proven(torch.device(DEVICE), torch.float32)
    assert words in caplog.text
    recurrent_layers._proven.cache_clear()


@pytest.mark.parametrize(
    "mixers",
    [["gated_deltanet", "softmax"], ["gated_deltanet"], ["gla", "deltanet"], ["retnet"]][
        : 1 if INTERPRETED else None
    ],
    ids="+".join,
)
def test_students_compute_what_they_do_without(
    mixers: list[str], make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models import build_student
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.ops.inference import recurrent_layers

    layers = [mixers[i % len(mixers)] for i in range(2)]
    # In bfloat16, correct computations of these layers differ by up to 7 %, in float16 by less than 1 %.
    dtype = torch.float32 if INTERPRETED else torch.float16
    student = build_student(make_teacher("llama"), layers).eval().to(DEVICE, dtype)
    texts = [[5, 6, 7, 8, 9], [11], [20, 21, 22]]
    found: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    used: list[bool] = []
    for fused, logits in found.items():
        monkeypatch.setattr(recurrent_layers, "applies", lambda x, fused=fused: used.append(fused) or fused)
        if INTERPRETED:
            monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x, fused=fused: fused)
        runner = ModelRunner(student)
        with torch.inference_mode():
            hidden, cache = runner.prefill(texts, keep=True)
            assert cache is not None
            logits += [hidden[0], hidden[1, :1], hidden[2, :3]]
            for branch in ([[4, 7], [9, 8], [6, 5]], [[3], [2], [1]]):
                hidden, _ = runner.prefill(branch, parent=cache, parent_rows=[2, 0, 1])
                logits += list(hidden)
    assert True in used
    for mine, plain in zip(*found.values(), strict=True):
        error = (mine.double() - plain.double()).norm() / plain.double().norm()
        assert error < (1e-4 if INTERPRETED else 1e-2), error

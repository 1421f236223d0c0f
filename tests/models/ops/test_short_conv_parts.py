"""Short convolutions part by part, on fla's kernel and on a stand-in for it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops import short_conv


def convolution_case(case: str, device: str) -> tuple[list[Tensor], list[Tensor], dict[str, Any]]:
    """Three parts, their weights, and where rows are padded or continue from a state."""
    torch.manual_seed(0)
    weights = [torch.randn(width, 1, 4, device=device) for width in (16, 16, 8)]
    parts = [torch.randn(3, 9, width, device=device) for width in (16, 16, 8)]
    lengths = torch.tensor([9, 4, 1], device=device)
    steps = torch.arange(9, device=device)
    masks = {
        "right": steps < lengths[:, None],
        "left": steps >= 9 - lengths[:, None],
    }
    state = torch.randn(3, 40, 3, device=device) if case == "continued" else None
    return parts, weights, {"state": state, "token_mask": masks.get(case), "cu_seqlens": None}


def compare_parts(case: str, device: str) -> None:
    parts, weights, arguments = convolution_case(case, device)
    with torch.inference_mode():
        found, last = short_conv.short_convolutions(parts, weights, 2, **arguments)
        mask = arguments["token_mask"]
        joint = torch.cat(parts, -1) if mask is None else torch.cat(parts, -1) * mask.unsqueeze(-1)
        history = short_conv.prepend_state(joint, 3, arguments["state"], mask)
        weight = torch.cat(weights).squeeze(1)
        wanted = short_conv.torch_convolution(history, weight, 32, 9, None)
        real = slice(None) if mask is None else mask
        torch.testing.assert_close(torch.cat(list(found), -1)[real], wanted[real], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last, short_conv.final_state(history, 3, mask))


@pytest.mark.parametrize("case", ["plain", "right", "left", "continued"])
def test_convolution_per_part(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    calls = []

    def causal_conv1d(x: Tensor, weight: Tensor, *, activation: str | None, cu_seqlens: None) -> Any:
        calls.append(activation)
        history = functional.pad(x, [0, 0, 3, 0])
        num_activated = x.shape[-1] if activation else 0
        return short_conv.torch_convolution(history, weight, num_activated, x.shape[1], None), None

    monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
    monkeypatch.setattr(short_conv.short_convolutions, "proven", lambda *_: False)
    monkeypatch.setitem(
        sys.modules, "fla.modules.causal_conv1d", SimpleNamespace(causal_conv1d=causal_conv1d)
    )
    compare_parts(case, "cpu")
    assert calls == ["silu", "silu", None]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", ["plain", "right", "left", "continued"])
def test_convolution_per_part_on_a_gpu(case: str) -> None:
    compare_parts(case, "cuda")


def test_packed_sequences_continue_from_their_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def causal_conv1d(x: Tensor, weight: Tensor, *, activation: str | None, cu_seqlens: None) -> Any:
        assert cu_seqlens is None
        history = functional.pad(x, [0, 0, 3, 0])
        return short_conv.torch_convolution(
            history, weight, x.shape[-1] if activation else 0, x.shape[1], None
        ), None

    monkeypatch.setitem(
        sys.modules, "fla.modules.causal_conv1d", SimpleNamespace(causal_conv1d=causal_conv1d)
    )
    parts, weights, _ = convolution_case("plain", "cpu")
    rows = [part.flatten(0, 1)[None] for part in parts]
    bounds = torch.tensor([0, 9, 11, 27])
    arguments: dict[str, Any] = {"state": torch.randn(3, 40, 3), "cu_seqlens": bounds}
    expected = short_conv.short_convolutions.reference(rows, weights, 2, **arguments)
    with torch.inference_mode():
        found = short_conv.short_convolutions.load("training")(rows, weights, 2, **arguments)
    for mine, theirs in zip((*found[0], found[1]), (*expected[0], expected[1]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)

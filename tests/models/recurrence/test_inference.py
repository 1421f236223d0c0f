"""Kernels for inference: how they are called (stand-ins, on a CPU), and what they compute (on a GPU)."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.mixers import convolution
from evalsuite.models.mixers.convolution import ShortConvolution
from evalsuite.models.recurrence import fla_backend, inference, recurrence, set_backend
from evalsuite.models.recurrence.chunked import chunked

CASES = [(decay, delta) for decay in ("none", "head", "scalar", "channel") for delta in (False, True)]


def draw(decay: str, delta: bool, length: int, *, device: str = "cpu") -> dict[str, Any]:
    make = torch.Generator(device).manual_seed(length)
    shape = (3, length, 2, 16)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=make, device=device)

    shapes = {"head": (2,), "scalar": shape[:3], "channel": shape}
    return {
        "q": functional.normalize(normal(*shape), dim=-1),
        "k": functional.normalize(normal(*shape), dim=-1),
        "v": normal(*shape),
        "log_decay": None if decay == "none" else functional.logsigmoid(normal(*shapes[decay]) + 2),
        "beta": torch.sigmoid(normal(*shape[:3])) if delta else None,
        "scale": 0.25,
        "initial_state": normal(3, 2, 16, 16),
    }


@pytest.mark.parametrize(("decay", "delta"), CASES)
@pytest.mark.parametrize("length", [1, inference.SHORT, inference.SHORT + 1])
def test_rows_become_sequences_of_one_row(
    monkeypatch: pytest.MonkeyPatch, decay: Any, delta: bool, length: int
) -> None:
    seen = []

    def stand_in(kernel: fla_backend.Kernel) -> Any:
        def call(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
            seen.append((kernel.name, q.shape[0]))
            assert given.pop("output_final_state")
            found = given.pop(kernel.keyword, None) if kernel.keyword else None
            return chunked(q, k, v, log_decay=found, beta=given.pop("beta", None), **given)

        return call

    monkeypatch.setattr(fla_backend, "_function", stand_in)
    terms = draw(decay, delta, length)
    kernel = inference.kernel_for(decay, delta=delta, dtype=torch.float32, length=length)
    o, state = inference.run(kernel, **terms, cu_seqlens=None)
    wanted, last = chunked(**terms, cu_seqlens=None)
    torch.testing.assert_close(o, wanted)
    torch.testing.assert_close(state, last)
    ((name, rows),) = seen
    assert name.startswith("fused_recurrent") == (length <= inference.SHORT)
    assert rows == (3 if length <= inference.SHORT else 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("decay", "delta"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_are_the_recurrence(
    monkeypatch: pytest.MonkeyPatch, decay: Any, delta: bool, dtype: torch.dtype
) -> None:
    from triton.runtime.autotuner import Autotuner

    # Which of the variants is fastest does not matter here, and compiling all takes minutes.
    monkeypatch.setattr(Autotuner, "prune_configs", lambda self, *_: self.configs[:1])
    set_backend("auto")
    # In chunks, float32 takes minutes to compile; the two kernels that matter most speak for all.
    chunked_too = dtype == torch.bfloat16 and decay == "scalar"
    for length in (1, 7, 64, *([inference.SHORT + 2] if chunked_too else [])):
        terms = draw(decay, delta, length, device="cuda")
        terms |= {name: terms[name].to(dtype) for name in ("q", "k", "v")}
        with torch.inference_mode():
            found = recurrence(**terms)
            wanted = chunked(**terms, cu_seqlens=None)
        for mine, theirs in zip(found, wanted, strict=True):
            bound = 2e-2 if dtype == torch.bfloat16 else 1e-5
            error = (mine.float() - theirs.float()).norm() / theirs.float().norm()
            assert error <= bound, (length, float(error))


def parts_of(case: str, device: str) -> tuple[ShortConvolution, list[Tensor], dict[str, Any]]:
    """A convolution of three parts, two of them activated, and rows that are padded or go on."""
    torch.manual_seed(0)
    conv = ShortConvolution(40, 4, 32).to(device)
    torch.nn.init.normal_(conv.weight)
    parts = [torch.randn(3, 9, width, device=device) for width in (16, 16, 8)]
    lengths = torch.tensor([9, 4, 1], device=device)
    steps = torch.arange(9, device=device)
    masks = {
        "right": steps < lengths[:, None],
        "left": steps >= 9 - lengths[:, None],
    }
    state = torch.randn(3, 40, 3, device=device) if case == "goes on" else None
    return conv, parts, {"state": state, "token_mask": masks.get(case), "cu_seqlens": None}


def compare_split(case: str, device: str) -> None:
    conv, parts, how = parts_of(case, device)
    with torch.inference_mode():
        found, tail = conv.split(parts, **how)
        mask = how["token_mask"]
        joint = torch.cat(parts, -1) if mask is None else torch.cat(parts, -1) * mask.unsqueeze(-1)
        history = conv._with_history(joint, how["state"], mask)
        wanted = conv._torch(history, conv.weight, 9, None)
        real = slice(None) if mask is None else mask
        torch.testing.assert_close(torch.cat(list(found), -1)[real], wanted[real], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(tail, conv._tail(history, mask))


@pytest.mark.parametrize("case", ["whole", "right", "left", "goes on"])
def test_convolution_in_parts(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    calls = []

    def causal_conv1d(x: Tensor, weight: Tensor, *, activation: str | None, cu_seqlens: None) -> Any:
        calls.append(activation)
        y = ShortConvolution._torch(
            SimpleNamespace(taps=4, _activate=lambda y: functional.silu(y) if activation else y),
            functional.pad(x, [0, 0, 3, 0]),
            weight,
            x.shape[1],
            None,
        )
        return y, None

    monkeypatch.setattr(convolution, "using_fla", lambda x: True)
    monkeypatch.setitem(
        sys.modules, "fla.modules.causal_conv1d", SimpleNamespace(causal_conv1d=causal_conv1d)
    )
    compare_split(case, "cpu")
    assert calls == ["silu", "silu", None]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", ["whole", "right", "left", "goes on"])
def test_convolution_in_parts_on_a_gpu(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    from triton.runtime.autotuner import Autotuner

    monkeypatch.setattr(Autotuner, "prune_configs", lambda self, *_: self.configs[:1])
    set_backend("auto")
    compare_split(case, "cuda")

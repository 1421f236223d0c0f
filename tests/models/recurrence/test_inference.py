"""Kernels for inference: how they are called (stand-ins, on a CPU), and what they compute (on a GPU)."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

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
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    set_backend("auto")
    for length in (1, 7, 64, inference.SHORT + 2):
        terms = draw(decay, delta, length, device="cuda")
        terms |= {name: terms[name].to(dtype) for name in ("q", "k", "v")}
        with torch.inference_mode():
            found = recurrence(**terms)
            wanted = chunked(**terms, cu_seqlens=None)
        for mine, theirs in zip(found, wanted, strict=True):
            # Token by token the kernels compute in float32; in chunks, in TF32 unless told before the start.
            bound = 2e-2 if dtype == torch.bfloat16 else 1e-5 if length <= inference.SHORT else 2e-3
            error = (mine.float() - theirs.float()).norm() / theirs.float().norm()
            assert error <= bound, (length, float(error))

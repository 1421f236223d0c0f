"""Kernels of decoder layers without gradients compute what the operations do that they replace.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.models.ops import reference
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE

DTYPES = [torch.float32, torch.float16, torch.bfloat16][: 2 if INTERPRETED else None]


@pytest.mark.parametrize("width", [48, 72] + [576, 4096] * (not INTERPRETED))
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_a_sum(width: int, dtype: torch.dtype) -> None:
    from evalsuite.models.ops.inference.decoder_layers import add_norm

    torch.manual_seed(0)
    # More rows than one program computes, and not a multiple of them; sums that rounding changes.
    x, residual = (
        torch.randn(2, 3, 43, width, device=DEVICE) * torch.tensor([8, 0.1]).view(2, 1, 1, 1).to(DEVICE)
    ).to(dtype)
    weight = torch.randn(width, device=DEVICE).to(dtype)
    before = residual.clone()
    normed, total = add_norm(x.transpose(0, 1), residual.transpose(0, 1), weight, 1e-5)
    expected, sums = reference.rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(total.transpose(0, 1), sums)
    tolerance = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    torch.testing.assert_close(normed.transpose(0, 1), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("width", [7, 80, 576] + [1536] * (not INTERPRETED))
@pytest.mark.parametrize("shape", [(3, 1), (2, 45), (1, 1, 9)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_values(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    from evalsuite.models.ops.inference.decoder_layers import gated

    torch.manual_seed(0)
    joined = (torch.randn(*shape, 2 * width + 16, device=DEVICE) * 3).to(dtype)
    tolerance = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    both = joined[..., :width], joined[..., width : 2 * width]
    # Parts of one projection; one of them in rows of its own; transposed, so that it has to be copied.
    for gate, x in (both, (both[0], both[1].contiguous()), (both[0].mT.contiguous().mT, both[1])):
        found = gated(gate, x)
        assert found.is_contiguous()
        expected = reference.swiglu(gate.double(), x.double())
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    assert joined.isfinite().all()


def test_the_proof_passes() -> None:
    from evalsuite.models.ops.inference import decoder_layers

    for dtype in (torch.float32, torch.bfloat16):
        off = max(decoder_layers._deviations(torch.device(DEVICE), dtype))
        assert off < (1e-4 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize(
    ("family", "mixers"),
    [("llama", []), ("llama", ["gated_deltanet", "softmax"])]
    + [("qwen2", []), ("qwen3", ["softmax", "kda"]), ("mistral", ["gla", "retnet"])] * (not INTERPRETED),
)
def test_models_compute_what_they_do_without(
    family: str, mixers: list[str], make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models import build_student
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.ops.inference import decoder_layers

    teacher = make_teacher(family)
    model = build_student(teacher, mixers) if mixers else teacher
    # In bfloat16, correct computations of these layers differ by up to 7 %.
    model = model.eval().to(DEVICE, torch.float16)
    texts = [[5, 6, 7, 8, 9], [11], [20, 21, 22]]
    found: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    sums: list[bool] = []
    right = decoder_layers.add_norm
    monkeypatch.setattr(decoder_layers, "add_norm", lambda *given: sums.append(fused) or right(*given))
    for fused, outputs in found.items():
        monkeypatch.setattr(decoder_layers, "applies", lambda x, fused=fused: fused)
        if INTERPRETED:
            for module in ("recurrence.decode", "inference.recurrent_layers", "inference.logprobs"):
                name = f"evalsuite.models.ops.{module}.applies"
                monkeypatch.setattr(name, lambda *form, fused=fused: fused)
            monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
            # fla needs a GPU.
            monkeypatch.setattr("evalsuite.models.ops.recurrence.op.use_triton", lambda x, fused=fused: fused)
            monkeypatch.setattr("evalsuite.models.mixers.convolution.use_triton", lambda x: False)
            monkeypatch.setattr("evalsuite.models.mixers.layers.use_triton", lambda x: False)
        runner = ModelRunner(model)
        with torch.inference_mode():
            hidden, cache = runner.prefill(texts, keep=True)
            assert cache is not None
            outputs += [hidden[0], hidden[1, :1], hidden[2, :3]]
            for branch in ([[4, 7], [9, 8], [6, 5]], [[3], [2], [1]]):
                hidden, _ = runner.prefill(branch, parent=cache, parent_rows=[2, 0, 1])
                outputs += list(hidden)
    # Every layer in every pass, the one of the runner's own check included.
    assert sums == [True] * 4 * len(model.get_decoder().layers)
    for mine, plain in zip(*found.values(), strict=True):
        error = (mine.double() - plain.double()).norm() / plain.double().norm()
        assert error < 1e-2, error
    assert all("forward" not in module.__dict__ for module in model.modules())

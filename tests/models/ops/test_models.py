"""Models compute with kernels for inference what they compute without.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize(
    ("family", "mixers"),
    [("llama", []), ("llama", ["gated_deltanet", "softmax"]), ("gemma3_text", [])]
    + [("qwen2", []), ("qwen3", ["softmax", "kda"]), ("mistral", ["gla", "retnet"])] * (not INTERPRETED)
    + [("llama", ["gated_deltanet"]), ("llama", ["gla", "deltanet"])] * (not INTERPRETED),
)
def test_models_compute_what_they_do_without(
    family: str, mixers: list[str], make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models import build_student
    from evalsuite.models.decoder.build import to_decoder
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.ops.dispatch import Op

    teacher: Any = to_decoder(make_teacher(family))
    layers = [mixers[i % len(mixers)] for i in range(2)] if mixers else []
    model = build_student(teacher, layers) if mixers else teacher
    # In bfloat16, correct computations of these layers differ by up to 7 %, in float16 by less than 1 %.
    model = model.eval().to(DEVICE, torch.float16)
    texts = [[5, 6, 7, 8, 9], [11], [20, 21, 22]]
    found: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    sums: list[bool] = []
    norms: Any = import_module("evalsuite.models.ops.rms_norm.inference")
    right = norms._add_norm
    monkeypatch.setattr(norms, "_add_norm", lambda *given: sums.append(fused) or right(*given))
    for fused, outputs in found.items():
        monkeypatch.setattr(Op, "proven", lambda *_, fused=fused: fused)
        if INTERPRETED:
            monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x, fused=fused: fused)
            # fla needs a GPU.
            monkeypatch.setattr("evalsuite.models.ops.recurrence.op.use_triton", lambda x: False)
        runner = ModelRunner(model)
        with torch.inference_mode():
            hidden, cache = runner.prefill(texts, keep=True)
            assert cache is not None
            outputs += [hidden[0], hidden[1, :1], hidden[2, :3]]
            for branch in ([[4, 7], [9, 8], [6, 5]], [[3], [2], [1]]):
                hidden, _ = runner.prefill(branch, parent=cache, parent_rows=[2, 0, 1])
                outputs += list(hidden)
    # Every layer in every pass, those of the runner's own check included.
    assert len(sums) >= 4 * len(model.get_decoder().layers)
    assert all(sums)
    for mine, plain in zip(*found.values(), strict=True):
        error = (mine.double() - plain.double()).norm() / plain.double().norm()
        assert error < 1e-2, error
    assert all("forward" not in module.__dict__ for module in model.modules())

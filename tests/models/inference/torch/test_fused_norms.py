"""RMS norms and MLPs are fused only where a kernel is equivalent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from evalsuite.models.inference.torch.fusion.norms import FusedNorms, fused_forward, fused_mlp
from evalsuite.models.mixers.layers import OutputNorm, RMSNorm

DEVICES = ("cpu", "cuda")


def test_equivalent_norms_are_fused() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        llama, ours = LlamaRMSNorm(32, 1e-5).to(dtype), RMSNorm(32, 1e-5).to(dtype)
        for norm in (llama, ours):
            torch.nn.init.normal_(norm.weight)
            forward = fused_forward(norm, DEVICES)
            assert forward is not None
            x = torch.randn(2, 3, 32, dtype=dtype)
            torch.testing.assert_close(forward(x), norm(x))


def test_other_modules_are_left_alone() -> None:
    shifted = GemmaRMSNorm(32)  # multiplies by 1 + weight
    torch.nn.init.normal_(shifted.weight)
    assert fused_forward(shifted, DEVICES) is None
    assert fused_forward(torch.nn.LayerNorm(32), DEVICES) is None
    assert fused_forward(torch.nn.Linear(32, 32, bias=False), DEVICES) is None


@pytest.mark.parametrize("kind", ["layer", "group", "rms_all_heads"])
def test_norms_of_all_heads_are_left_alone(kind: str) -> None:
    norm = OutputNorm(kind, 4, 8, 1e-5)
    for parameter in norm.parameters():
        torch.nn.init.ones_(parameter)
    assert fused_forward(norm, DEVICES) is None


def test_the_model_is_restored() -> None:
    norm = torch.nn.Sequential(LlamaRMSNorm(8))
    norms = FusedNorms(norm)
    norms._fused = [(norm[0], lambda x: x * 7)]
    with norms.enabled():
        assert norm(torch.ones(1, 8)).max() == 7
    assert "forward" not in norm[0].__dict__
    assert norm(torch.ones(1, 8)).max() < 2


def test_mlps_on_a_cpu_and_other_activations_are_left_alone(make_teacher: Callable[..., Any]) -> None:
    mlp = make_teacher("llama").bfloat16().model.layers[0].mlp
    assert fused_mlp(mlp) is None
    assert fused_mlp(torch.nn.Linear(8, 8)) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mlps_are_fused(family: str, dtype: torch.dtype, make_teacher: Callable[..., Any]) -> None:
    mlp = make_teacher(family).cuda().to(dtype).model.layers[0].mlp
    forward = fused_mlp(mlp)
    assert forward is not None
    x = torch.randn(3, 50, mlp.config.hidden_size, device="cuda", dtype=dtype)
    with torch.inference_mode():
        mine, exact = forward(x), mlp.float()(x.float())
    assert (mine.float() - exact).norm() / exact.norm() < 1e-2
    mlp.config.hidden_act = "gelu"
    assert fused_mlp(mlp.to(dtype)) is None

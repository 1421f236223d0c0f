"""RMS norms are fused only where torch's kernel is equivalent."""

import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from evalsuite.models.inference.torch.fused_norms import FusedNorms, fused_forward
from evalsuite.models.mixers.layers import RMSNorm

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


def test_the_model_is_restored() -> None:
    norm = torch.nn.Sequential(LlamaRMSNorm(8))
    norms = FusedNorms(norm)
    norms._fused = [(norm[0], lambda x: x * 7)]
    with norms.enabled():
        assert norm(torch.ones(1, 8)).max() == 7
    assert "forward" not in norm[0].__dict__
    assert norm(torch.ones(1, 8)).max() < 2

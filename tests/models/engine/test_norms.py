import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from evalsuite.models.engine.norms import Norms, fused
from evalsuite.models.mixers.parts import RMSNorm

DEVICES = ("cpu", "cuda")


def test_a_norm_is_known_by_its_numbers() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        llama, ours = LlamaRMSNorm(32, 1e-5).to(dtype), RMSNorm(32, 1e-5).to(dtype)
        for norm in (llama, ours):
            torch.nn.init.normal_(norm.weight)
            forward = fused(norm, DEVICES)
            assert forward is not None
            x = torch.randn(2, 3, 32, dtype=dtype)
            torch.testing.assert_close(forward(x), norm(x))


def test_whatever_else_looks_like_one_is_left_alone() -> None:
    shifted = GemmaRMSNorm(32)  # multiplies by 1 + weight
    torch.nn.init.normal_(shifted.weight)
    assert fused(shifted, DEVICES) is None
    assert fused(torch.nn.LayerNorm(32), DEVICES) is None
    assert fused(torch.nn.Linear(32, 32, bias=False), DEVICES) is None


def test_the_model_is_what_it_was_afterwards() -> None:
    norm = torch.nn.Sequential(LlamaRMSNorm(8))
    norms = Norms(norm)
    norms._fused = [(norm[0], lambda x: x * 7)]
    with norms.fused():
        assert norm(torch.ones(1, 8)).max() == 7
    assert "forward" not in norm[0].__dict__
    assert norm(torch.ones(1, 8)).max() < 2

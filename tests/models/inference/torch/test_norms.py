"""RMS norms are replaced only where a kernel is equivalent."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from evalsuite.models.inference.torch.norms import OneKernelNorm, replace_norms
from evalsuite.models.mixers.layers import OutputNorm, RMSNorm

DEVICES = ("cpu", "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equivalent_norms_are_replaced(dtype: torch.dtype) -> None:
    model: Any = nn.Sequential(LlamaRMSNorm(32, 1e-5), RMSNorm(32, 1e-5)).to(dtype)
    for norm in model:
        torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 32, dtype=dtype)
    wanted, names = model(x), list(model.state_dict())
    assert replace_norms(model, DEVICES) == 2
    assert all(isinstance(norm, OneKernelNorm) for norm in model)
    assert list(model.state_dict()) == names
    assert torch.equal(model(x), wanted)
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)


def test_other_modules_are_left_alone() -> None:
    shifted = GemmaRMSNorm(32)  # multiplies by 1 + weight
    torch.nn.init.normal_(shifted.weight)
    others = [OutputNorm(kind, 4, 8, 1e-5) for kind in ("layer", "group", "rms_all_heads")]
    for parameter in nn.ModuleList(others).parameters():
        torch.nn.init.ones_(parameter)
    model: Any = nn.Sequential(shifted, nn.LayerNorm(32), nn.Linear(32, 32, bias=False), *others)
    before = list(model)
    assert replace_norms(model, DEVICES) == 0
    assert list(model) == before


def test_nothing_is_replaced_on_a_cpu() -> None:
    assert replace_norms(nn.Sequential(LlamaRMSNorm(8))) == 0

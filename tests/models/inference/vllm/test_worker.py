"""Arguments with which the worker starts vLLM, by device."""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from evalsuite.models.inference.vllm.worker import start


@dataclasses.dataclass
class EngineArgs:
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int
    max_model_len: int
    enable_prefix_caching: bool
    seed: int


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of each `vllm.LLM`, of a vLLM on a GPU half of whose memory is free."""
    calls: list[dict[str, Any]] = []

    class LLM:
        def __init__(self, *, model: str, dtype: str, **arguments: Any) -> None:
            calls.append(arguments)

    platform = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True, device_type="cuda")
    for name, members in {
        "vllm": {"LLM": LLM, "__version__": "0.32.0"},
        "vllm.platforms": {"current_platform": platform},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
    }.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40 << 30, 80 << 30))
    return calls


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        ({}, 0.45),
        # The cache has its size; by default vLLM would still demand 92 % of the memory.
        ({"kv_cache_memory_bytes": 1 << 30}, 0.1),
        ({"gpu_memory_utilization": 0.3}, 0.3),
    ],
)
def test_vllm_takes_a_share_of_the_free_memory(
    started: list[dict[str, Any]], arguments: dict[str, Any], share: float
) -> None:
    _, versions = start(
        {"model": "m", "dtype": "auto", "max_length": 64, "student": False, "arguments": arguments}
    )
    assert versions["device"] == "cuda"
    assert started == [
        {
            "max_model_len": 64,
            "enable_prefix_caching": False,
            "seed": 0,
            **arguments,
            "gpu_memory_utilization": share,
        }
    ]

"""Small random teachers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

FAMILIES = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, because tests run in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_teacher() -> Callable[..., PreTrainedModel]:
    """Make a random grouped-query teacher (4 query heads, 2 key heads) with random biases and norms."""

    def make(family: str = "llama", *, layers: int = 2, **changes: Any) -> PreTrainedModel:
        torch.manual_seed(0)
        settings = {
            "vocab_size": 61,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,
            "pad_token_id": None,
            **({"sliding_window": None} if family == "mistral" else {}),
            **changes,
        }
        model = AutoModelForCausalLM.from_config(FAMILIES[family](**settings)).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
        return model

    return make

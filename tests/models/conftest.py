"""Small random teachers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

FAMILIES = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "smollm3": SmolLM3Config,
    "olmo2": Olmo2Config,
    "olmo3": Olmo3Config,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    # A layer without rotation, and windows, norms, soft caps and scales that matter at these sizes.
    "smollm3": {"no_rope_layers": [1, 0] * 8},
    "olmo3": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 8},
    "gemma2": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 20,
        "head_dim": 16,
    },
    "gemma3_text": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 8,
        "query_pre_attn_scalar": 20,
        "head_dim": 16,
    },
}
"""Settings of families besides the common sizes; lists are cut to the number of layers."""


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
            **DEFAULTS.get(family, {}),
            **changes,
        }
        settings |= {key: value[:layers] for key, value in settings.items() if isinstance(value, list)}
        model = AutoModelForCausalLM.from_config(FAMILIES[family](**settings)).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                # The weight of Gemma's norms is the gain − 1.
                mean = 1.0 if "norm" in name and not family.startswith("gemma") else 0.0
                torch.nn.init.normal_(parameter, mean=mean, std=0.2)
        return model

    return make

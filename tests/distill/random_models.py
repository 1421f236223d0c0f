"""Models with random weights, from the settings of an architecture."""

from typing import Any

import torch
from transformers import LlamaForCausalLM

from evalsuite.distill.recipe.config import ArchitectureConfig
from evalsuite.distill.training.builders import architecture_config
from evalsuite.models import StudentForCausalLM


def build_random_model(architecture: ArchitectureConfig, vocab_size: int, tokenizer: Any, seed: int) -> Any:
    """A Llama-style model whose weights `seed` determines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = architecture_config(architecture, tokenizer)
        config.vocab_size = vocab_size
        return StudentForCausalLM.of_teacher(LlamaForCausalLM(config))

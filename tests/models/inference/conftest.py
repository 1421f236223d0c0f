"""Small random models and a byte-level tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from evalsuite.models import build_student
from evalsuite.models.checkpoints.precision import EXACT, Precision
from evalsuite.models.inference.torch.engine import TorchEngine

VOCABULARY = 400
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


@dataclass
class FakeCheckpoint:
    """The fields of a checkpoint that the engine uses."""

    model: PreTrainedModel
    tokenizer: Any
    weights_id: str = "0" * 16
    label: str = "tiny"
    precision: Precision = EXACT


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["the cat sat on the mat and the dog ran to the den"] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<|end|>"],
    )


def build_model(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=24)).eval()
    if kind == "mistral":
        return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7)).eval()
    options = {"sliding_window": {"window": 6}} if "sliding_window" in kind else {}
    student = build_student(build_model("llama"), kind.split("+"), options=options).eval()
    with torch.no_grad():
        # A new student's gates are constant; make them depend on the token.
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return student


@pytest.fixture(scope="session")
def build(tokenizer: Any) -> Callable[..., FakeCheckpoint]:
    """Makes a fresh checkpoint of a kind, for tests that change its weights."""
    return lambda kind: FakeCheckpoint(build_model(kind), tokenizer)


KINDS = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gated_deltanet+gated_deltanet+gated_deltanet",
    "gla+softmax+linear_attention",
    "sliding_window+gated_deltanet+softmax",
]


@pytest.fixture(scope="session", params=KINDS)
def engine(request: pytest.FixtureRequest, build: Callable[..., FakeCheckpoint]) -> TorchEngine:
    return TorchEngine(build(request.param))


@pytest.fixture(scope="session")
def llama(build: Callable[..., FakeCheckpoint]) -> TorchEngine:
    return TorchEngine(build("llama"))

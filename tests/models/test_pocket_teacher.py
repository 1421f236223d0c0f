"""The pocket teacher: architecture, tokenizer and task accuracy, with plain transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evalsuite.tasks.synthetic.pocket import TASKS, build_tokenizer, rows, score_response

FOLDER = Path(__file__).parents[2] / "models" / "pocket"


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


def test_architecture(model: Any) -> None:
    config = model.config
    assert config.model_type == "llama"
    assert config.num_attention_heads > config.num_key_value_heads
    assert config.head_dim in (32, 64)
    assert config.max_position_embeddings >= 2048
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 3_000_000


def test_size_of_the_package() -> None:
    weights = list(FOLDER.glob("*.safetensors"))
    assert [path.name for path in weights] == ["model.safetensors"]
    assert weights[0].stat().st_size <= 8_000_000
    assert (FOLDER / "README.md").is_file()


def test_tokenizer_matches_the_pocket_tasks(model: Any, tokenizer: Any) -> None:
    stored = json.loads((FOLDER / "tokenizer.json").read_text())
    built = json.loads(build_tokenizer().to_str())
    for part in ("model", "pre_tokenizer", "decoder", "added_tokens"):
        assert stored[part] == built[part]
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id == model.config.eos_token_id


@pytest.mark.parametrize(("kind", "context"), [("facts", None), ("niah_single_2", 256)])
def test_accuracy_under_both_protocols(model: Any, tokenizer: Any, kind: str, context: int | None) -> None:
    drawn = rows(kind, count=30, context=context)
    loglikelihood = sum(_picks_gold(model, tokenizer, row) for row in drawn)
    generation = sum(
        score_response(row, _generate(model, tokenizer, row["prompt"], kind)).correct for row in drawn
    )
    assert loglikelihood >= 28
    assert generation >= 28


def _picks_gold(model: Any, tokenizer: Any, row: dict[str, Any]) -> bool:
    """Whether the correct choice has the largest summed log-probability."""
    prompt = tokenizer(row["prompt"])["input_ids"]
    choices = tokenizer(row["choices"])["input_ids"]
    longest = max(map(len, choices))
    padded = [prompt + choice + [tokenizer.pad_token_id] * (longest - len(choice)) for choice in choices]
    with torch.no_grad():
        logprobs = model(torch.tensor(padded)).logits[:, len(prompt) - 1 :].log_softmax(-1)
    sums = [
        sum(float(logprobs[place, step, token]) for step, token in enumerate(choice))
        for place, choice in enumerate(choices)
    ]
    return max(range(4), key=sums.__getitem__) == row["gold"]


def _generate(model: Any, tokenizer: Any, prompt: str, kind: str) -> str:
    """Greedy generation up to a newline, with a cache."""
    newline = tokenizer("\n")["input_ids"][0]
    tokens = torch.tensor([tokenizer(prompt)["input_ids"]])
    generated: list[int] = []
    cache = None
    with torch.no_grad():
        for _ in range(TASKS[kind].max_new_tokens):
            output = model(tokens, past_key_values=cache, use_cache=True)
            cache, tokens = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
            generated.append(int(tokens))
            if generated[-1] == newline:
                break
    return str(tokenizer.decode(generated))

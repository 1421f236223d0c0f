"""The doctor finds nothing in a sound model, and finds what is broken."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evalsuite.foundation import DataError
from evalsuite.models import build_student
from evalsuite.models.checkpoints import Checkpoint
from evalsuite.models.doctor import examine, report
from evalsuite.models.engine.requests import ScoreRequest
from evalsuite.models.engine.torch_engine import TorchEngine


class NoTokenizer:
    eos_token_id = None
    all_special_tokens = ()

    def decode(self, tokens: list[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


def checkpoint(mixers: list[str] | None) -> Checkpoint:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=90,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    model: Any = LlamaForCausalLM(config).eval()
    return Checkpoint(
        "tiny", "tiny", build_student(model, mixers) if mixers else model, NoTokenizer(), "0" * 16
    )


def documents(count: int = 8) -> list[ScoreRequest]:
    draw = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(90) for _ in range(draw.randint(low, high)))

    return [ScoreRequest(ids(3, 30), tuple(ids(1, 6) for _ in range(3))) for _ in range(count)]


@pytest.mark.parametrize("mixers", [None, ["gated_deltanet", "softmax"], ["gla", "linear_attention"]])
def test_a_sound_model_has_no_artefacts(mixers: list[str] | None) -> None:
    result = examine(checkpoint(mixers), documents())
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    checks = {check["name"]: check for check in result["checks"]}
    assert set(checks) == {
        "batched",
        "padded right",
        "padded left",
        "packed",
        "decode",
        "precision bfloat16",
        "backend",
        "generation",
    }
    for name in ("batched", "padded right", "padded left", "packed", "decode"):
        assert checks[name]["skipped"] is None
        assert checks[name]["largest"] < 1e-3
        assert checks[name]["changed_answers"] == 0
        assert checks[name]["changed_tokens"] == 0
    assert checks["precision bfloat16"]["largest"] > 1e-3
    assert checks["backend"]["skipped"]
    assert checks["generation"]["answers"] == 8
    assert checks["generation"]["changed_answers"] == 0
    assert result["largest"] < 1e-3
    assert "answers changed" in report(result)


def test_a_model_that_reads_its_pads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ill = checkpoint(["gated_deltanet", "gated_deltanet"])
    real = ill.model.forward

    def forward(attention_mask: Any = None, **rest: Any) -> Any:
        return real(**rest)

    monkeypatch.setattr(ill.model, "forward", forward)
    result = examine(ill, documents())
    checks = {check["name"]: check for check in result["checks"]}
    assert checks["padded left"]["largest"] > 0.1
    assert checks["packed"]["largest"] < 1e-3
    assert result["largest"] > 0.1
    assert result["changed_answers_share"] >= checks["padded left"]["changed_answers"] / 8


def test_a_model_of_nan_is_refused() -> None:
    ill = checkpoint(None)
    with torch.no_grad():
        ill.model.lm_head.weight[3] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        examine(ill, documents())


def test_documents_without_a_choice_are_refused() -> None:
    with pytest.raises(DataError, match="two continuations"):
        examine(checkpoint(None), [ScoreRequest((1,), ((2,),))])


def test_another_engine_is_asked_too() -> None:
    """One that answers alike is sound; one that is off by a nat, or refuses, is found."""
    asked = checkpoint(["gated_deltanet", "softmax"])
    requests = documents()

    class Other(TorchEngine):
        name = "other"
        shift = 0.0

        def score(self, requests: Any) -> Any:
            for index, answer in super().score(requests):
                shifted = tuple(value - self.shift * (n == 0) for n, value in enumerate(answer.logprobs))
                yield index, replace(answer, logprobs=shifted)

    same = Other(asked)
    checks = {check["name"]: check for check in examine(asked, requests, same)["checks"]}
    assert checks["other"]["largest"] < 1e-4
    assert checks["other"]["changed_answers"] == checks["generation other"]["changed_answers"] == 0
    assert checks["generation other"]["answers"] == len(requests)
    same.shift = 30.0
    found = examine(asked, requests, same)
    checks = {check["name"]: check for check in found["checks"]}
    assert found["largest"] == checks["other"]["largest"] == pytest.approx(30.0, abs=1e-3)
    assert checks["other"]["changed_answers"] > 0
    same.shift = 0.0
    same.max_length = 10
    with pytest.raises(DataError, match="engine other does not answer: refused"):
        examine(asked, requests, same)

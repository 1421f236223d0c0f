"""The consistency checks pass on a correct model and fail on a broken one."""

import copy
import json
import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evalsuite.foundation import DataError
from evalsuite.models import build_student
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.diagnostics.consistency_checks import (
    _CheckRunner,
    format_checks,
    run_consistency_checks,
)
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine


class NoTokenizer:
    eos_token_id = None
    all_special_tokens = ()

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(letter) for letter in text]

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

    return [ScoreRequest(ids(3, 14), tuple(ids(1, 6) for _ in range(2))) for _ in range(count)]


@pytest.mark.parametrize("mixers", [None, ["gated_deltanet", "softmax"], ["gla", "linear_attention"]])
def test_a_correct_model_is_consistent(mixers: list[str] | None) -> None:
    result = run_consistency_checks(checkpoint(mixers), documents())
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
        "precision state",
        "generation",
    }
    for name in ("batched", "padded right", "padded left", "packed", "decode"):
        assert checks[name]["skipped"] is None
        assert checks[name]["max_difference"] < 1e-3
        assert checks[name]["changed_responses"] == 0
        assert checks[name]["changed_tokens"] == 0
    assert checks["precision bfloat16"]["max_difference"] > 1e-3
    assert checks["backend"]["skipped"]
    if mixers is None:
        assert "is not run by evalsuite's decoder" in checks["precision state"]["skipped"]
    else:
        assert (
            checks["precision bfloat16"]["max_difference"]
            > checks["precision state"]["max_difference"]
            > 1e-5
        )
    assert checks["generation"]["num_documents"] == 8
    assert checks["generation"]["changed_responses"] == 0
    assert result["max_difference"] < 1e-3
    assert not any(path["finding"] or path["skipped"] for path in result["own_paths"])
    text = format_checks(result)
    assert "responses changed" in text
    assert "No path differs in 8 texts beyond rounding: a path that changes more than 38 % of texts" in text


def test_a_model_that_attends_to_padding_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = checkpoint(["gated_deltanet", "gated_deltanet"])
    original = broken.model.forward

    def forward(attention_mask: Any = None, position_ids: Any = None, **rest: Any) -> Any:
        return original(**rest)

    monkeypatch.setattr(broken.model, "forward", forward)
    result = run_consistency_checks(broken, documents())
    checks = {check["name"]: check for check in result["checks"]}
    assert checks["padded left"]["max_difference"] > 0.1
    assert checks["packed"]["max_difference"] < 1e-3
    assert result["max_difference"] > 0.1
    assert result["max_changed_share"] >= checks["padded left"]["changed_responses"] / 8


def test_non_finite_logits_are_refused() -> None:
    broken = checkpoint(None)
    with torch.no_grad():
        broken.model.lm_head.weight[3] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        run_consistency_checks(broken, documents())


def test_documents_with_one_continuation_are_refused() -> None:
    with pytest.raises(DataError, match="two continuations"):
        run_consistency_checks(checkpoint(None), [ScoreRequest((1,), ((2,),))])


def test_documents_of_one_unknown_token_are_refused() -> None:
    same = [ScoreRequest((0,) * length, ((0,), (0, 0))) for length in (3, 5, 9)]
    with pytest.raises(DataError, match="tiny: the documents have 1 different tokens"):
        run_consistency_checks(checkpoint(None), same)


def test_another_engine_is_compared() -> None:
    """An equal engine is consistent; deviating log-probabilities and refused requests are detected."""
    examined = checkpoint(["gated_deltanet", "softmax"])
    requests = documents(3)

    class Other(TorchEngine):
        name = "other"
        shift = 0.0

        def score(self, requests: Any) -> Any:
            for index, response in super().score(requests):
                shifted = tuple(value - self.shift * (n == 0) for n, value in enumerate(response.logprobs))
                yield index, replace(response, logprobs=shifted)

    same = Other(examined)
    checks = {check["name"]: check for check in run_consistency_checks(examined, requests, same)["checks"]}
    assert checks["other"]["max_difference"] < 1e-4
    assert checks["other"]["changed_responses"] == checks["generation other"]["changed_responses"] == 0
    assert checks["generation other"]["num_documents"] == len(requests)
    same.shift = 30.0
    found = run_consistency_checks(examined, requests, same)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["other"]["max_difference"] == pytest.approx(30.0, abs=1e-3)
    assert found["max_difference"] == max(
        checks[name]["max_difference"] for name in checks if "other" in name
    )
    assert checks["other"]["changed_responses"] > 0
    same.shift = 0.0
    same.max_length = 10
    with pytest.raises(DataError, match="a request fails in engine other: invalid request"):
        run_consistency_checks(examined, requests, same)


@pytest.mark.parametrize("fault", ["warm", "crowded"])
def test_an_engine_that_depends_on_what_came_before_or_with_it_is_found(fault: str) -> None:
    """A warm prefix cache or other requests in the batch must not change a response."""
    examined, requests = checkpoint(["gated_deltanet", "softmax"]), documents(4)

    class Other(TorchEngine):
        name = "other"
        seen: ClassVar[set[ScoreRequest]] = set()

        def score(self, requests: Any) -> Any:
            for index, response in super().score(requests):
                broken = requests[index] in self.seen if fault == "warm" else len(requests) > 1
                self.seen.add(requests[index])
                first, *rest = response.logprobs
                yield index, replace(response, logprobs=(first - 30.0 * broken, *rest))

    load = documents(12)[8:]
    found = run_consistency_checks(examined, requests, Other(examined), load=load)["checks"]
    checks = {
        check["name"]: check["changed_responses"] > 0 for check in found if check["name"].startswith("other")
    }
    crowded = fault == "crowded"
    assert checks == {
        "other": crowded,
        "other again": True,
        "other alone": not crowded,
        # Compared with one request at a time, when caches are warm, too.
        "other under load": crowded,
    }


@pytest.mark.parametrize("mixers", [None, ["retnet", "softmax"]])
def test_precision_check_casts_parameters_only(mixers: list[str] | None) -> None:
    """Nobody runs bfloat16 rotary frequencies or decays: loading in bfloat16 leaves them in float32."""
    examined, requests = checkpoint(mixers), documents()
    runner = _CheckRunner(examined, requests)
    (check,) = (each for each in runner.variants() if each[0] == "precision bfloat16")
    found = runner.run(*check)
    model = copy.deepcopy(examined.model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    changed, largest = 0, 0.0
    for request in requests:
        for tokens in request.continuations:
            ids = torch.tensor([request.context + tokens])
            with torch.inference_mode():
                ours, theirs = (
                    each(input_ids=ids).logits[0].float().log_softmax(-1) for each in (examined.model, model)
                )
            changed += int((ours.argmax(-1) != theirs.argmax(-1)).sum())
            targets = ids[0, 1:, None]
            difference = ours[:-1].gather(1, targets) - theirs[:-1].gather(1, targets)
            largest = max(largest, float(difference.abs().max()))
    assert (found.changed_tokens, found.max_difference) == (changed, pytest.approx(largest, abs=1e-6))

"""Positions beyond those that a config states: what can be computed, what is refused, and the fingerprint."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, PreTrainedConfig, PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.checkpoints.positions import check_max_length, stated_positions
from evalsuite.models.engines import ENGINES, engine_type
from evalsuite.models.inference import EngineType, GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine

STATED = 256
"""Positions of the small models of this folder."""


def student(build: Callable[..., Any], mixers: list[str], **options: Any) -> PreTrainedModel:
    return build_student(build("llama").model, mixers, options=options)


def test_what_has_no_positions(build: Callable[..., Any]) -> None:
    three = ["gated_deltanet"] * 3
    assert student(build, three).config.is_recurrent
    assert not student(build, [*three[:2], "softmax"]).config.is_recurrent
    assert not student(build, [*three[:2], "sliding_window"]).config.is_recurrent
    assert not student(build, ["linear_attention"] * 3).config.is_recurrent
    rotated = {"gated_deltanet": {"rotary": True}}
    assert not student(build, three, **rotated).config.is_recurrent
    windowed = {"gated_deltanet": {"window": 4}}
    assert not student(build, three, **windowed).config.is_recurrent


def rope(kind: str) -> LlamaConfig:
    factors = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32} if kind == "longrope" else {}
    parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **factors}
    return LlamaConfig(max_position_embeddings=64, rope_parameters=parameters)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GPT2Config(n_positions=64), r"end at 64: GPT2Config has no rotary embedding"),
        (rope("dynamic"), r"end at 64: .*'dynamic'\) depend on the longest text of a batch"),
        (rope("longrope"), r"end at 64: .*'longrope'\)"),
    ],
)
def test_positions_that_end_are_refused(config: PreTrainedConfig, why: str) -> None:
    assert stated_positions(config) == 64
    check_max_length(config, 64)
    with pytest.raises(ConfigError, match=why):
        check_max_length(config, 65)


@pytest.mark.parametrize("kind", ["default", "linear"])
def test_rotary_angles_continue(kind: str) -> None:
    check_max_length(rope(kind), 10**6)


def test_recurrent_student_ignores_the_rotary_embedding_of_its_teacher(build: Callable[..., Any]) -> None:
    model = student(build, ["gated_deltanet"] * 3)
    model.config.base.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    check_max_length(model.config, 10**6)


def tokens(count: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(3, 400, (count,), generator=generator).tolist())


@pytest.mark.parametrize("kind", ["gated_deltanet+gated_deltanet+gated_deltanet", "llama"])
def test_responses_at_four_times_the_positions_are_the_models(build: Callable[..., Any], kind: str) -> None:
    """The engine, which splits a text and forks its state, equals one plain pass over the whole text."""
    checkpoint = build(kind)
    engine = TorchEngine(checkpoint, max_length=4 * STATED)
    context, continuations = tokens(4 * STATED - 8), (tokens(5), tokens(3))
    request = ScoreRequest(context, continuations)
    ((_, short),) = TorchEngine(checkpoint).score([request])
    assert short.error is not None
    assert f"reads at most {STATED}" in short.error
    ((_, response),) = engine.score([request])
    for logprob, continuation in zip(response.logprobs, continuations, strict=True):
        text = torch.tensor([context + continuation])
        with torch.no_grad():
            rows = checkpoint.model(text).logits[0].double().log_softmax(-1)
        picked = rows[len(context) - 1 : -1].gather(1, text[0, len(context) :, None])
        assert logprob == pytest.approx(picked.sum().item(), abs=1e-3)
    ((_, generated),) = engine.generate([GenerateRequest(context, SamplingParams(4))])
    assert generated.error is None
    with torch.no_grad():
        first = checkpoint.model(torch.tensor([context])).logits[0, -1].argmax().item()
    assert generated.tokens[0] == first


def test_only_an_extension_is_in_the_fingerprint(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    plain, shorter, equal = (TorchEngine(checkpoint, max_length=n) for n in (None, 64, STATED))
    assert "max_length" not in plain.versions
    assert plain.fingerprint == shorter.fingerprint == equal.fingerprint
    longer = [TorchEngine(checkpoint, max_length=n) for n in (STATED + 1, 2 * STATED)]
    assert [each.versions["max_length"] for each in longer] == ["257", "512"]
    assert len({each.fingerprint for each in (plain, *longer)}) == 3


def test_engine_that_ends_at_the_stated_positions_is_refused() -> None:
    assert engine_type("torch", {}, 512) is TorchEngine
    with pytest.raises(ConfigError, match=r"\(--max-length\) = 512: engine vllm reads no more positions"):
        engine_type("vllm", {}, 512)
    assert engine_type("vllm", {}) is ENGINES["vllm"]
    assert not EngineType.extends_positions

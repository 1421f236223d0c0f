"""The plain engine is right for any causal model, says what it leaves unused, and refuses others."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GPT2Config, LlamaForCausalLM, MambaConfig

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.positions import UNLIMITED
from evalsuite.models.inference import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.proof import UnsupportedModelError
from evalsuite.models.inference.stopping import GenerationState, StopChecker
from evalsuite.models.inference.torch.engine import TorchEngine, open_in_process
from evalsuite.models.inference.transformers import engine as engine_module
from evalsuite.models.inference.transformers import generation, verify
from evalsuite.models.inference.transformers.engine import TransformersEngine
from tests.parity.tiny_families import FAMILIES, SIZES, Family, make_checkpoint, make_model

Build = Callable[[str], Any]


def requests(count: int, seed: int = 0) -> list[ScoreRequest]:
    draw = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, 400) for _ in range(draw.randint(low, high)))

    return [ScoreRequest(ids(1, 40), (ids(1, 1), ids(1, 1), ids(1, 6))) for _ in range(count)]


def checkpoint_of(model: Any) -> Any:
    return replace(make_checkpoint(FAMILIES["llama"]), model=model.eval())


class IgnoresCache(LlamaForCausalLM):
    """A model that starts afresh whatever cache it is given, and returns one."""

    def forward(self, *args: Any, **arguments: Any) -> Any:
        for name in ("past_key_values", "cache", "position_ids"):
            arguments.pop(name, None)
        return super().forward(*args, **arguments)


class MixesRows(LlamaForCausalLM):
    """A model whose texts see the other texts of their batch."""

    def forward(self, *args: Any, **rest: Any) -> Any:
        out = super().forward(*args, **rest)
        out.logits = out.logits + out.logits.mean(0, keepdim=True)
        return out


def variant(kind: type[LlamaForCausalLM]) -> Any:
    model = kind(make_model(FAMILIES["llama"]).config)
    model.load_state_dict(make_model(FAMILIES["llama"]).state_dict())
    return checkpoint_of(model)


def test_it_takes_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "evalsuite"):
        engine = open_in_process(make_checkpoint(FAMILIES["rwkv"]))
    assert isinstance(engine, TransformersEngine)
    assert "which is slower, because engine torch cannot: RwkvForCausalLM" in engine.notice
    assert "its own cache gives other logits than the text read whole" in engine.notice
    assert f"rwkv: {engine.notice}" in caplog.text
    caplog.clear()
    assert isinstance(known := open_in_process(make_checkpoint(FAMILIES["llama"])), TorchEngine)
    assert known.notice == ""
    assert not caplog.text


def test_an_engine_that_derives_from_torch_does_not_become_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(TorchEngine):
        """Of another package."""

    checkpoint = make_checkpoint(FAMILIES["mamba"])
    monkeypatch.setattr(
        "evalsuite.models.inference.torch.engine.load_checkpoint", lambda *_, **__: checkpoint
    )
    settings = SimpleNamespace(loading={}, max_length=None)
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        Derived.open("x", settings)  # type: ignore[arg-type]
    assert isinstance(TorchEngine.open("x", settings), TransformersEngine)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_tokens", [None, 50])
def test_responses_equal_those_of_the_torch_engine(build: Build, batch_tokens: int | None) -> None:
    """Scores, stop strings, limits, and draws by seed have one meaning."""
    checkpoint = build("llama")
    fast, plain = TorchEngine(checkpoint), TransformersEngine(checkpoint, batch_tokens=batch_tokens)
    wanted = requests(12)
    theirs = dict(fast.score(wanted))
    for index, response in plain.score(wanted):
        assert response.logprobs == pytest.approx(theirs[index].logprobs, abs=1e-4)
        assert (response.greedy, response.lengths) == (theirs[index].greedy, theirs[index].lengths)
    free = dict(fast.generate([GenerateRequest(request.context, SamplingParams(12)) for request in wanted]))
    stop = next(text for response in free.values() if (text := response.text[4:6].strip()))
    prompts = [
        GenerateRequest(request.context, sampling, seed)
        for seed, request in enumerate(wanted)
        for sampling in (
            SamplingParams(12), SamplingParams(12, stop=(stop,)), SamplingParams(3),
            SamplingParams(9, 0.8, 0.9, 20), SamplingParams(9, 1.5, stop=(stop, "<|end|>")),
        )
    ]  # fmt: skip
    expected = dict(fast.generate(prompts))
    assert {response.finish_reason for response in expected.values()} >= {"stop", "length"}
    assert dict(plain.generate(prompts)) == expected


def test_texts_are_read_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TransformersEngine(build("llama"))
    read: list[int] = []
    original = plain.runner.logits
    monkeypatch.setattr(
        plain.runner, "logits", lambda texts, first=0: read.append(len(texts)) or original(texts, first)
    )
    # Two continuations of one token share the text that is the context.
    list(plain.score([ScoreRequest((5, 6, 7), ((8,), (9,), (10, 11)))]))
    assert read == [2]


def test_a_model_that_ignores_its_cache(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = variant(IgnoresCache)
    plain = TransformersEngine(checkpoint)
    assert plain.runner.caching == "never"
    assert "its own cache gives other logits" in plain.notice
    assert "reads every text again" in plain.notice
    prompts = [GenerateRequest(request.context, SamplingParams(5)) for request in make_requests_small()]
    expected = dict(TorchEngine(make_checkpoint(FAMILIES["llama"])).generate(prompts))
    assert dict(plain.generate(prompts)) == expected


def make_requests_small() -> list[ScoreRequest]:
    return [ScoreRequest(tuple(range(3, 3 + length)), ((4,), (5, 6))) for length in (1, 4, 4, 9, 30)]


def test_texts_that_see_each_other_are_read_alone() -> None:
    plain = TransformersEngine(variant(MixesRows))
    assert (plain.runner.batching, plain.runner.caching) == ("single texts", "single texts")
    assert "texts in a batch give other logits than alone" in plain.notice
    wanted = make_requests_small()
    expected = dict(TorchEngine(make_checkpoint(FAMILIES["llama"])).score(wanted))
    doubled = plain.checkpoint.model
    for index, response in plain.score(wanted):
        assert response.logprobs != pytest.approx(expected[index].logprobs, abs=1e-3)
        for continuation, logprob in zip(wanted[index].continuations, response.logprobs, strict=True):
            text = torch.tensor([wanted[index].context + continuation[:-1]])
            with torch.no_grad():
                logprobs = doubled(text).logits[0, -len(continuation) :].log_softmax(-1)
            assert logprob == pytest.approx(
                float(logprobs.gather(1, torch.tensor(continuation)[:, None]).sum()), abs=1e-4
            )


def test_a_model_that_sees_later_tokens_is_refused() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = BertLMHeadModel(BertConfig(vocab_size=96, **sizes))
    with pytest.raises(
        UnsupportedModelError, match=r"BertLMHeadModel: the logits of a text change.*no causal"
    ):
        open_in_process(checkpoint_of(model))


def test_a_model_that_cannot_run_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = make_checkpoint(FAMILIES["mamba"])

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("no such kernel")

    monkeypatch.setattr(checkpoint.model.backbone, "forward", broken)
    with pytest.raises(
        UnsupportedModelError, match=r"MambaForCausalLM: transformers cannot run it.*no such kern"
    ):
        open_in_process(checkpoint)


def test_nan_is_an_error_of_its_row_only() -> None:
    checkpoint = make_checkpoint(FAMILIES["mamba2"])
    with torch.no_grad():
        checkpoint.model.get_input_embeddings().weight[95] = torch.nan
    plain = TransformersEngine(checkpoint)
    scored = dict(plain.score([ScoreRequest((5, 6), ((7, 8),)), ScoreRequest((5, 95), ((7, 8), (9,)))]))
    assert scored[0].error is None
    assert "not finite" in (scored[1].error or "")
    generated = dict(plain.generate([GenerateRequest(p, SamplingParams(3)) for p in ((5, 6), (5, 95))]))
    assert generated[0].error is None
    assert "not finite" in (generated[1].error or "")


def test_a_model_that_is_not_finite_at_all_gives_errors() -> None:
    checkpoint = make_checkpoint(FAMILIES["mamba2"])
    with torch.no_grad():
        checkpoint.model.get_input_embeddings().weight.fill_(torch.nan)
    plain = open_in_process(checkpoint)
    assert {response.error is None for _, response in plain.score(make_requests_small())} == {False}


def test_positions() -> None:
    unlimited = TransformersEngine(make_checkpoint(FAMILIES["mamba"]))
    assert unlimited.max_length == UNLIMITED
    assert not hasattr(MambaConfig(), "max_position_embeddings")
    gpt = make_checkpoint(FAMILIES["gpt2"])
    [(_, response)] = TransformersEngine(gpt).score([ScoreRequest((5,) * 256, ((6, 7),))])
    assert "the model reads at most 256" in (response.error or "")
    with pytest.raises(ConfigError, match=f"positions end at 256: {GPT2Config.__name__} has no rotary"):
        TransformersEngine(gpt, max_length=300)
    tiny = Family("Tiny", "gpt2", FAMILIES["gpt2"].settings | {"n_positions": 6})
    with pytest.raises(UnsupportedModelError, match="it reads 6 tokens"):
        open_in_process(make_checkpoint(tiny))


def test_ids_without_an_embedding_are_errors() -> None:
    plain = TransformersEngine(make_checkpoint(FAMILIES["mamba"]))
    [(_, response)] = plain.score([ScoreRequest((5, SIZES["vocab_size"]), ((6,),))])
    assert "token id 96 is outside the model's vocabulary of 96" in (response.error or "")


def test_out_of_memory_halves_batches_and_loses_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TransformersEngine(build("llama"))
    wanted = requests(9)
    prompts = [GenerateRequest(request.context, SamplingParams(4)) for request in wanted]
    expected = dict(plain.score(wanted)), dict(plain.generate(prompts))
    batch, lockstep = engine_module.PlainLoglikelihoodBatch, engine_module.generate_in_lockstep
    sizes: list[int] = []

    def short_of_memory(call: Any, place: int) -> Any:
        def limited(*args: Any) -> Any:
            sizes.append(len(args[place]))
            if len(args[place]) > 2:
                raise torch.OutOfMemoryError("simulated")
            return call(*args)

        return limited

    monkeypatch.setattr(engine_module, "PlainLoglikelihoodBatch", short_of_memory(batch, 1))
    monkeypatch.setattr(engine_module, "generate_in_lockstep", short_of_memory(lockstep, 1))
    for index, response in plain.score(wanted):
        assert response.logprobs == pytest.approx(expected[0][index].logprobs, abs=1e-4)
    assert dict(plain.generate(prompts)) == expected[1]
    assert max(sizes) > 2


def test_a_resumed_run_equals_an_uninterrupted_one(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TransformersEngine(build("llama"), batch_tokens=128)
    wanted = requests(20, seed=5)
    order = list(plain.score(wanted))
    for done in (3, 19):
        completed = {index for index, _ in order[:done]}
        assert list(plain.score_remaining(wanted, completed)) == order[done:]


def test_prompts_join_a_batch_while_it_saves_steps(build: Build) -> None:
    plain = TransformersEngine(build("llama"))
    made = []
    for number, length in enumerate((3, 40, 38, 31)):
        request = GenerateRequest((5,) * length, SamplingParams(8))
        checker = StopChecker(plain.checkpoint.tokenizer, request.sampling, 8, plain.eos_ids)
        made.append(GenerationState(number, request, checker))

    def lengths(count: int, cache_bytes: int = 1 << 30) -> list[list[int]]:
        limits = replace(plain.limits, cache_bytes=cache_bytes)
        batches = generation.make_lockstep_batches(made, plain.runner, limits, count)
        return [[len(sequence.request.prompt) for sequence in batch] for batch in batches]

    assert lengths(9) == [[40, 38], [31], [3]]
    assert lengths(1) == lengths(9, cache_bytes=1) == [[40], [38], [31], [3]]
    plain.runner.caching = "single texts"
    assert lengths(9) == [[40], [38], [31], [3]]


def test_the_fingerprint_covers_how_texts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TransformersEngine(make_checkpoint(FAMILIES["mamba2"]))
    assert (first.versions["batches"], first.versions["cache"]) == ("padded", "batches")
    assert first.fingerprint == TransformersEngine(make_checkpoint(FAMILIES["mamba2"])).fingerprint
    monkeypatch.setattr(verify, "_cache_deviation", lambda *_: "by much")
    other = TransformersEngine(make_checkpoint(FAMILIES["mamba2"]))
    assert other.versions["cache"] == "never"
    assert other.fingerprint != first.fingerprint

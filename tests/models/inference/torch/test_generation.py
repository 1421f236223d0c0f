"""Generation equals transformers' token by token, however requests are batched."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import GenerationScheduler


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(4, 400) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def reference(engine: TorchEngine, prompt: tuple[int, ...], count: int) -> tuple[list[int], bool]:
    """transformers' greedy generate at batch one; the tokens before EOS, and whether EOS was generated."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        generated = engine.checkpoint.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=sorted(engine.eos_ids),
        )
    tokens = generated[0, len(prompt) :].tolist()
    ended = tokens[-1] in engine.eos_ids
    return (tokens[:-1] if ended else tokens), ended


def test_equals_transformers_generate(engine: TorchEngine) -> None:
    requests = [GenerateRequest(p, SamplingParams(max_new_tokens=20)) for p in prompts(12)]
    responses = dict(engine.generate(requests))
    assert sorted(responses) == list(range(12))
    for index, request in enumerate(requests):
        tokens, ended = reference(engine, request.prompt, 20)
        assert list(responses[index].tokens) == tokens
        assert responses[index].finish_reason == ("eos" if ended else "length")


def test_common_prefixes_are_prefilled_once(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    haystacks = [tuple(draw.randrange(4, 400) for _ in range(120)) for _ in range(2)]
    few_shot = [haystacks[number % 2][:100] + own for number, own in enumerate(prompts(12, seed=4))]
    # Prompts differ from the needle's depth on; one prompt is the haystack itself.
    needles = [
        haystacks[0][:depth] + own for depth, own in zip(range(70, 118, 6), prompts(8, seed=5), strict=True)
    ]
    inputs = [*few_shot, *needles, haystacks[0], *prompts(4, seed=6)]
    requests = [GenerateRequest(prompt, SamplingParams(max_new_tokens=6)) for prompt in inputs]
    expected = [reference(engine, prompt, 6) for prompt in inputs]
    prefilled: list[int] = []
    original = ModelRunner.prefill

    def counted(self: ModelRunner, rows: Any, **rest: Any) -> Any:
        prefilled.append(sum(map(len, rows)))
        return original(self, rows, **rest)

    monkeypatch.setattr(ModelRunner, "prefill", counted)
    for num_seqs in (256, 5):
        engine = TorchEngine(engine.checkpoint)
        engine.limits = replace(engine.limits, max_num_seqs=num_seqs)
        prefilled.clear()
        responses = dict(engine.generate(requests))
        saved = sum(map(len, inputs)) - sum(prefilled)
        # The prefixes themselves cost two prompts; a recurrent state cannot be truncated at the needles.
        assert saved > (1500 if not engine.runner.state_bytes_per_seq else 1000)
        for index, (tokens, ended) in enumerate(expected):
            assert list(responses[index].tokens) == tokens
            assert responses[index].finish_reason == ("eos" if ended else "length")


def test_continuous_batching_does_not_change_responses(llama: TorchEngine) -> None:
    draw = random.Random(4)
    requests = [
        GenerateRequest(p, SamplingParams(max_new_tokens=draw.choice([1, 2, 5, 17, 30])))
        for p in prompts(40, seed=3)
    ]
    alone = [next(iter(llama.generate([request])))[1] for request in requests]
    for num_seqs, steps, lookahead in ((1, 1, 0), (3, 4, 1), (16, 1, 0), (16, 8, 1)):
        engine = TorchEngine(llama.checkpoint, batch_tokens=100)
        engine.steps_per_block, engine.lookahead = steps, lookahead
        engine.limits = replace(engine.limits, max_num_seqs=num_seqs)
        responses = dict(engine.generate(requests))
        assert [responses[i] for i in range(40)] == alone


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prompt_that_fills_its_slot_ends_within_it(llama: TorchEngine, lookahead: int) -> None:
    """Its only token is not read yet when the block that decodes the other row starts."""
    lengths, limits = (64, 5), (1, 20)
    requests = [
        GenerateRequest(tuple(range(3, 3 + length)), SamplingParams(max_new_tokens=limit))
        for length, limit in zip(lengths, limits, strict=True)
    ]
    alone = [next(iter(llama.generate([request])))[1] for request in requests]
    engine = TorchEngine(llama.checkpoint)
    engine.steps_per_block, engine.lookahead = 8, lookahead
    responses = dict(engine.generate(requests))
    assert [responses[index] for index in range(2)] == alone


@pytest.mark.parametrize(("lookahead", "expected"), [(0, "pppcccdc"), (1, "pppdccc")])
def test_passes_are_dispatched_before_the_first_is_read(
    llama: TorchEngine, monkeypatch: pytest.MonkeyPatch, lookahead: int, expected: str
) -> None:
    """On a GPU: reading a pass waits for it, and the GPU for the launches of the next one."""
    log: list[str] = []

    def logged(name: str, letter: str) -> None:
        method = getattr(GenerationScheduler, name)

        def call(self: GenerationScheduler, *args: Any) -> Any:
            log.append(letter)
            return method(self, *args)

        monkeypatch.setattr(GenerationScheduler, name, call)

    for name, letter in (("_prefill_into", "p"), ("_dispatch", "d"), ("_collect", "c")):
        logged(name, letter)
    engine = TorchEngine(llama.checkpoint, batch_tokens=100)
    engine.steps_per_block, engine.lookahead = 8, lookahead
    requests = [GenerateRequest((5 + each,) * 90, SamplingParams(max_new_tokens=20)) for each in range(3)]
    assert len(dict(engine.generate(requests))) == 3
    assert "".join(log).startswith(expected)


@pytest.mark.parametrize(("steps_per_block", "lookahead"), [(8, 0), (1, 1), (5, 2)])
def test_lookahead_does_not_change_responses(
    llama: TorchEngine, steps_per_block: int, lookahead: int
) -> None:
    sampling = SamplingParams(max_new_tokens=23, stop=("at", " the"), temperature=0.9)
    requests = [GenerateRequest(p, sampling, seed) for seed, p in enumerate(prompts(20, seed=5))]
    stepwise = dict(llama.generate(requests))
    engine = TorchEngine(llama.checkpoint)
    engine.steps_per_block, engine.lookahead = steps_per_block, lookahead
    engine.limits = replace(engine.limits, max_num_seqs=7)
    assert dict(engine.generate(requests)) == stepwise
    assert {response.finish_reason for response in stepwise.values()} >= {"stop", "length"}


def test_samples_depend_on_the_seed_only(llama: TorchEngine) -> None:
    sampling = SamplingParams(max_new_tokens=15, temperature=1.2, top_k=30, top_p=0.9)
    requests = [GenerateRequest(p, sampling, seed) for seed, p in enumerate(prompts(10, seed=6))]
    together = dict(llama.generate(requests))
    greedy = [GenerateRequest(r.prompt, SamplingParams(max_new_tokens=15)) for r in requests]
    mixed = dict(llama.generate(greedy + requests[::-1]))
    for index, request in enumerate(requests):
        [(_, alone)] = llama.generate([request])
        assert together[index] == alone == mixed[19 - index]
    same_prompt = [GenerateRequest(requests[0].prompt, sampling, seed) for seed in range(20)]
    assert len({response.tokens for _, response in llama.generate(same_prompt)}) > 10


def test_stop_strings_cut_the_text(llama: TorchEngine, tokenizer: Any) -> None:
    [(_, free)] = llama.generate([GenerateRequest((5, 6, 7), SamplingParams(max_new_tokens=60))])
    text = tokenizer.decode(list(free.tokens), skip_special_tokens=True)
    # Every substring of the text stops the generation at its first occurrence.
    for start in range(3, len(text) - 4, 5):
        stop = text[start : start + 3]
        if "\ufffd" in stop:
            continue
        [(_, response)] = llama.generate(
            [GenerateRequest((5, 6, 7), SamplingParams(60, stop=(stop, "absent")))]
        )
        assert response.finish_reason == "stop"
        assert response.text == text[: text.find(stop)]
        assert list(response.tokens) == list(free.tokens[: len(response.tokens)])
        assert stop in tokenizer.decode(list(response.tokens), skip_special_tokens=True)
        assert stop not in tokenizer.decode(list(response.tokens[:-1]), skip_special_tokens=True)


def test_a_special_token_as_stop_string_ends_the_response(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    end = checkpoint.tokenizer.convert_tokens_to_ids("<|end|>")
    with torch.no_grad():
        checkpoint.model.lm_head.weight.zero_()
        checkpoint.model.lm_head.weight[end] = 0.01 * torch.ones(64)
        checkpoint.model.model.norm.weight.fill_(1.0)
    engine = TorchEngine(checkpoint)
    for prompt in prompts(6, seed=8):
        [(_, plain)] = engine.generate([GenerateRequest(prompt, SamplingParams(4))])
        [(_, stopped)] = engine.generate([GenerateRequest(prompt, SamplingParams(4, stop=("<|end|>",)))])
        if end in plain.tokens:
            assert stopped.finish_reason == "stop"
            assert end not in stopped.tokens
            return
    pytest.fail("the model never generated the special token")


def test_invalid_requests_are_errors(llama: TorchEngine) -> None:
    sampling = SamplingParams(max_new_tokens=5)
    responses = dict(
        llama.generate(
            [
                GenerateRequest((), sampling),
                GenerateRequest(tuple([5] * 257), sampling),
                GenerateRequest((400,), sampling),
                GenerateRequest(tuple([5] * 254), sampling),
            ]
        )
    )
    assert "empty" in (responses[0].error or "")
    assert "257 tokens" in (responses[1].error or "")
    assert "token id 400" in (responses[2].error or "")
    assert {responses[i].finish_reason for i in range(3)} == {"error"}
    # Three tokens fit: the first two are read again, the last one is not.
    assert responses[3].finish_reason == "length"
    assert len(responses[3].tokens) == 3


def test_nan_is_an_error(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    with torch.no_grad():
        checkpoint.model.model.embed_tokens.weight[50] = torch.nan
    engine = TorchEngine(checkpoint)
    responses = dict(
        engine.generate(
            [GenerateRequest((5, 6), SamplingParams(3)), GenerateRequest((5, 50), SamplingParams(3))]
        )
    )
    assert responses[0].error is None
    assert responses[1].finish_reason == "error"
    assert "not finite" in (responses[1].error or "")


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    llama: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models.inference.torch import scheduler

    requests = [GenerateRequest(p, SamplingParams(max_new_tokens=9)) for p in prompts(20, seed=9)]
    expected = dict(llama.generate(requests))
    original = scheduler.DecodeBatch.step

    def short_of_memory(self, num_seqs, length):  # type: ignore[no-untyped-def]
        if num_seqs > 6:
            raise torch.OutOfMemoryError("simulated")
        original(self, num_seqs, length)

    monkeypatch.setattr(scheduler.DecodeBatch, "step", short_of_memory)
    responses = list(llama.generate(requests))
    assert len(responses) == 20
    assert dict(responses) == expected


def test_slots_are_used_again_by_generations_of_the_same_shape(engine: TorchEngine) -> None:
    first, second = (
        [GenerateRequest(ids, SamplingParams(9)) for ids in ((5, 6, start), (7, 8, 9), (start, 4, 11))]
        for start in (12, 33)
    )
    alone = dict(engine.generate(second))
    engine.close()
    assert engine._last_batch is None
    dict(engine.generate(first))
    kept = engine._last_batch
    assert kept is not None
    assert dict(engine.generate(second)) == alone
    assert engine._last_batch is kept
    # Sampling needs other operations, and more tokens other slots.
    sampled = [GenerateRequest(r.prompt, SamplingParams(9, temperature=1.0)) for r in second]
    dict(engine.generate(sampled))
    assert engine._last_batch is not kept
    dict(engine.generate([GenerateRequest(second[0].prompt, SamplingParams(200))]))
    assert engine._last_batch[0][:2] == (1, 256)


def test_memory_of_the_last_generation_is_given_up_for_scores(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ScoreRequest((5, 6), ((7,), (8, 9)))
    expected = dict(engine.score([request]))
    dict(engine.generate([GenerateRequest((5, 6), SamplingParams(3))]))
    start = engine._start

    def scarce(*given: Any) -> Any:
        if engine._last_batch is not None:
            raise torch.OutOfMemoryError("full")
        return start(*given)

    monkeypatch.setattr(engine, "_start", scarce)
    assert dict(engine.score([request])) == expected
    assert engine._last_batch is None

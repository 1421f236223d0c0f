"""Generation is transformers' own, token by token, whatever runs beside it."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.requests import GenerateRequest, Sampling
from evalsuite.models.engine.torch_engine import TorchEngine


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(4, 400) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def reference(engine: TorchEngine, prompt: tuple[int, ...], count: int) -> tuple[list[int], bool]:
    """transformers' greedy generate at batch one; the tokens before EOS, and whether it came."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        written = engine.checkpoint.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=sorted(engine.eos),
        )
    tokens = written[0, len(prompt) :].tolist()
    ended = tokens[-1] in engine.eos
    return (tokens[:-1] if ended else tokens), ended


def test_equals_transformers_generate(engine: TorchEngine) -> None:
    requests = [GenerateRequest(p, Sampling(max_new_tokens=20)) for p in prompts(12)]
    answers = dict(engine.generate(requests))
    assert sorted(answers) == list(range(12))
    for index, request in enumerate(requests):
        tokens, ended = reference(engine, request.prompt, 20)
        assert list(answers[index].tokens) == tokens
        assert answers[index].finish == ("eos" if ended else "length")


def test_shared_beginnings_are_read_once(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    hay = [tuple(draw.randrange(4, 400) for _ in range(120)) for _ in range(2)]
    shots = [hay[number % 2][:100] + own for number, own in enumerate(prompts(12, seed=4))]
    # A needle ends what two prompts share, each at its own depth; one is the hay itself.
    needles = [hay[0][:depth] + own for depth, own in zip(range(70, 118, 6), prompts(8, seed=5), strict=True)]
    asked = [*shots, *needles, hay[0], *prompts(4, seed=6)]
    requests = [GenerateRequest(prompt, Sampling(max_new_tokens=12)) for prompt in asked]
    read: list[int] = []
    plain = Decoder.read

    def counted(self: Decoder, rows: Any, **how: Any) -> Any:
        read.append(sum(map(len, rows)))
        return plain(self, rows, **how)

    monkeypatch.setattr(Decoder, "read", counted)
    for rows in (256, 5):
        engine = TorchEngine(engine.checkpoint)
        engine.sizes = replace(engine.sizes, rows=rows)
        read.clear()
        answers = dict(engine.generate(requests))
        saved = sum(map(len, asked)) - sum(read)
        # Two prompts out of each trunk pay for it; a recurrence cannot be cut at the depths of needles.
        assert saved > (1500 if not engine.decoder.row_bytes else 1000)
        for index, request in enumerate(requests):
            tokens, ended = reference(engine, request.prompt, 12)
            assert list(answers[index].tokens) == tokens
            assert answers[index].finish == ("eos" if ended else "length")


def test_rows_enter_and_leave(llama: TorchEngine) -> None:
    draw = random.Random(4)
    requests = [
        GenerateRequest(p, Sampling(max_new_tokens=draw.choice([1, 2, 5, 17, 30])))
        for p in prompts(40, seed=3)
    ]
    alone = [next(iter(llama.generate([request])))[1] for request in requests]
    for rows in (1, 3, 16):
        engine = TorchEngine(llama.checkpoint, batch_tokens=100)
        engine.sizes = replace(engine.sizes, rows=rows)
        answers = dict(engine.generate(requests))
        assert [answers[i] for i in range(40)] == alone


@pytest.mark.parametrize(("block", "ahead"), [(8, 0), (1, 1), (5, 2)])
def test_looking_later_does_not_change_answers(llama: TorchEngine, block: int, ahead: int) -> None:
    sampling = Sampling(max_new_tokens=23, stop=("at", " the"), temperature=0.9)
    requests = [GenerateRequest(p, sampling, seed) for seed, p in enumerate(prompts(20, seed=5))]
    stepwise = dict(llama.generate(requests))
    engine = TorchEngine(llama.checkpoint)
    engine.block, engine.ahead = block, ahead
    engine.sizes = replace(engine.sizes, rows=7)
    assert dict(engine.generate(requests)) == stepwise
    assert {answer.finish for answer in stepwise.values()} >= {"stop", "length"}


def test_samples_depend_on_the_seed_alone(llama: TorchEngine) -> None:
    sampling = Sampling(max_new_tokens=15, temperature=1.2, top_k=30, top_p=0.9)
    requests = [GenerateRequest(p, sampling, seed) for seed, p in enumerate(prompts(10, seed=6))]
    together = dict(llama.generate(requests))
    greedy = [GenerateRequest(r.prompt, Sampling(max_new_tokens=15)) for r in requests]
    mixed = dict(llama.generate(greedy + requests[::-1]))
    for index, request in enumerate(requests):
        [(_, alone)] = llama.generate([request])
        assert together[index] == alone == mixed[19 - index]
    same_prompt = [GenerateRequest(requests[0].prompt, sampling, seed) for seed in range(20)]
    assert len({answer.tokens for _, answer in llama.generate(same_prompt)}) > 10


def test_stop_strings_cut_the_text(llama: TorchEngine, tokenizer: Any) -> None:
    [(_, free)] = llama.generate([GenerateRequest((5, 6, 7), Sampling(max_new_tokens=60))])
    text = tokenizer.decode(list(free.tokens), skip_special_tokens=True)
    # Every cut of the text is found as a stop string at its first occurrence.
    for start in range(3, len(text) - 4, 5):
        stop = text[start : start + 3]
        if "\ufffd" in stop:
            continue
        [(_, answer)] = llama.generate([GenerateRequest((5, 6, 7), Sampling(60, stop=(stop, "absent")))])
        assert answer.finish == "stop"
        assert answer.text == text[: text.find(stop)]
        assert list(answer.tokens) == list(free.tokens[: len(answer.tokens)])
        assert stop in tokenizer.decode(list(answer.tokens), skip_special_tokens=True)
        assert stop not in tokenizer.decode(list(answer.tokens[:-1]), skip_special_tokens=True)


def test_a_special_token_as_stop_string_ends_the_answer(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    end = checkpoint.tokenizer.convert_tokens_to_ids("<|end|>")
    with torch.no_grad():
        checkpoint.model.lm_head.weight.zero_()
        checkpoint.model.lm_head.weight[end] = 0.01 * torch.ones(64)
        checkpoint.model.model.norm.weight.fill_(1.0)
    engine = TorchEngine(checkpoint)
    for prompt in prompts(6, seed=8):
        [(_, plain)] = engine.generate([GenerateRequest(prompt, Sampling(4))])
        [(_, stopped)] = engine.generate([GenerateRequest(prompt, Sampling(4, stop=("<|end|>",)))])
        if end in plain.tokens:
            assert stopped.finish == "stop"
            assert end not in stopped.tokens
            return
    pytest.fail("the model never wrote the special token")


def test_what_cannot_be_generated_is_an_error(llama: TorchEngine) -> None:
    sampling = Sampling(max_new_tokens=5)
    answers = dict(
        llama.generate(
            [
                GenerateRequest((), sampling),
                GenerateRequest(tuple([5] * 257), sampling),
                GenerateRequest((400,), sampling),
                GenerateRequest(tuple([5] * 254), sampling),
            ]
        )
    )
    assert "empty" in (answers[0].error or "")
    assert "257 tokens" in (answers[1].error or "")
    assert "token id 400" in (answers[2].error or "")
    assert {answers[i].finish for i in range(3)} == {"error"}
    # Three tokens fit: two are read again, the last is only written.
    assert answers[3].finish == "length"
    assert len(answers[3].tokens) == 3


def test_nan_is_an_error(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    with torch.no_grad():
        checkpoint.model.model.embed_tokens.weight[50] = torch.nan
    engine = TorchEngine(checkpoint)
    answers = dict(
        engine.generate([GenerateRequest((5, 6), Sampling(3)), GenerateRequest((5, 50), Sampling(3))])
    )
    assert answers[0].error is None
    assert answers[1].finish == "error"
    assert "not finite" in (answers[1].error or "")


def test_out_of_memory_halves_the_rows_and_loses_nothing(
    llama: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models.engine import decode

    requests = [GenerateRequest(p, Sampling(max_new_tokens=9)) for p in prompts(20, seed=9)]
    expected = dict(llama.generate(requests))
    real = decode.Rows.step

    def short_of_memory(self, rows, length):  # type: ignore[no-untyped-def]
        if rows > 6:
            raise torch.OutOfMemoryError("pretended")
        real(self, rows, length)

    monkeypatch.setattr(decode.Rows, "step", short_of_memory)
    answers = list(llama.generate(requests))
    assert len(answers) == 20
    assert dict(answers) == expected

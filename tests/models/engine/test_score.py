"""Log-likelihoods are those of one plain forward pass, whatever is asked together."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.requests import ScoreRequest
from evalsuite.models.engine.scoring import TORN, plan_rest
from evalsuite.models.engine.torch_engine import TorchEngine

TOLERANCE = 2e-4


def some_requests(count: int, seed: int = 0, longest: int = 60) -> list[ScoreRequest]:
    draw = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, 400) for _ in range(draw.randint(low, high)))

    return [
        ScoreRequest(ids(1, longest), tuple(ids(1, 9) for _ in range(draw.choice([1, 1, 2, 4]))))
        for _ in range(count)
    ]


def reference(engine: TorchEngine, request: ScoreRequest) -> list[tuple[float, bool]]:
    """lm-eval's definition, one unpadded sequence at a time, through the whole model."""
    results = []
    for continuation in request.continuations:
        tokens = torch.tensor([request.context + continuation])
        with torch.no_grad():
            logits = engine.checkpoint.model(tokens[:, :-1]).logits[0, -len(continuation) :]
        logprobs = logits.log_softmax(-1)
        target = torch.tensor(continuation)
        chosen = logprobs.gather(1, target[:, None]).sum()
        results.append((float(chosen), bool((logprobs.argmax(-1) == target).all())))
    return results


def test_equals_plain_forward(engine: TorchEngine) -> None:
    requests = some_requests(25)
    answers = dict(engine.score(requests))
    assert sorted(answers) == list(range(len(requests)))
    for index, request in enumerate(requests):
        answer = answers[index]
        assert answer.error is None
        assert answer.lengths == tuple(len(tokens) for tokens in request.continuations)
        for logprob, greedy, (expected, flag) in zip(
            answer.logprobs, answer.greedy, reference(engine, request), strict=True
        ):
            assert logprob == pytest.approx(expected, abs=TOLERANCE)
            assert greedy == flag


def test_shared_beginnings_are_read_once(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    shots = [tuple(draw.randrange(4, 400) for _ in range(80)) for _ in range(2)]
    requests = [
        replace(request, context=shots[number % 2] + request.context)
        for number, request in enumerate(some_requests(12, seed=4, longest=20))
    ] + some_requests(4, seed=5)
    read: list[int] = []
    plain = Decoder.read

    def counted(self: Decoder, rows: Any, **how: Any) -> Any:
        read.append(sum(map(len, rows)))
        return plain(self, rows, **how)

    monkeypatch.setattr(Decoder, "read", counted)
    answers = dict(engine.score(requests))
    own = sum(len(each.context) + sum(map(len, each.continuations)) for each in requests)
    assert sum(read) <= own - 10 * 80
    for index, request in enumerate(requests):
        expected = reference(engine, request)
        assert answers[index].logprobs == pytest.approx([value for value, _ in expected], abs=TOLERANCE)


def test_greedy_flag_is_true_for_the_models_own_words(engine: TorchEngine) -> None:
    context = (5, 6, 7, 8)
    tokens = list(context)
    for _ in range(5):
        with torch.no_grad():
            tokens.append(int(engine.checkpoint.model(torch.tensor([tokens])).logits[0, -1].argmax()))
    own = tuple(tokens[4:])
    other = (*own[:-1], (own[-1] + 1) % 400)
    [(_, answer)] = engine.score([ScoreRequest(context, (own, other, own[:1]))])
    assert answer.greedy == (True, False, True)


@pytest.mark.parametrize(("batch_tokens", "ahead"), [(1, 0), (40, 1), (300, 2)])
def test_batches_do_not_change_answers(llama: TorchEngine, batch_tokens: int, ahead: int) -> None:
    requests = some_requests(30, seed=1)
    together = dict(llama.score(requests))
    other = TorchEngine(llama.checkpoint, batch_tokens=batch_tokens)
    other.ahead = ahead
    order = list(range(len(requests)))
    random.Random(2).shuffle(order)
    for place, answer in other.score([requests[i] for i in order]):
        expected = together[order[place]]
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
        assert answer.greedy == expected.greedy


def test_what_cannot_be_scored_is_an_error_not_a_zero(llama: TorchEngine) -> None:
    good = ScoreRequest((5, 6), ((7,), (8, 9)))
    requests = [
        ScoreRequest((), ((7,),)),
        ScoreRequest((5,), ()),
        ScoreRequest((5,), ((7,), ())),
        ScoreRequest(tuple([5] * 256), ((7, 8),)),
        ScoreRequest((5,), ((400,),)),
        good,
    ]
    answers = dict(llama.score(requests))
    for index, words in enumerate(
        ["context is empty", "no continuation", "continuation 1 is empty", "258 tokens", "token id 400"]
    ):
        assert words in (answers[index].error or "")
        assert answers[index].logprobs == ()
    assert answers[5].error is None
    # One token fewer fits: the last one is predicted, never read.
    [(_, fits)] = llama.score([ScoreRequest(tuple([5] * 256), ((7,),))])
    assert fits.error is None


def test_nan_is_an_error_of_the_row_that_has_it(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    with torch.no_grad():
        checkpoint.model.model.embed_tokens.weight[50] = torch.nan
    engine = TorchEngine(checkpoint)
    answers = dict(engine.score([ScoreRequest((5, 6), ((7, 8),)), ScoreRequest((5, 50), ((7, 8), (9,)))]))
    assert answers[0].error is None
    assert "not finite" in (answers[1].error or "")


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    llama: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models.engine import torch_engine

    sizes: list[int] = []
    real = torch_engine.ScoredBatch

    def short_of_memory(decoder: Any, requests: Any, limits: Any, shared: int) -> Any:
        sizes.append(len(requests))
        if len(requests) > 3:
            raise torch.OutOfMemoryError("pretended")
        return real(decoder, requests, limits, shared)

    monkeypatch.setattr(torch_engine, "ScoredBatch", short_of_memory)
    requests = some_requests(14, seed=3)
    answers = dict(llama.score(requests))
    monkeypatch.undo()
    expected = dict(llama.score(requests))
    assert max(sizes) > 3
    assert sorted(answers) == list(range(14))
    for index, answer in answers.items():
        assert answer.logprobs == pytest.approx(expected[index].logprobs, abs=TOLERANCE)


def test_fingerprints_name_what_changes_numbers(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = TorchEngine(build("llama"))
    same = TorchEngine(build("llama"), batch_tokens=7, max_length=20)
    half = build("llama")
    half.model = half.model.to(torch.bfloat16)
    other = build("llama")
    other.weights_id = "1" * 16
    prints = {llama.fingerprint, TorchEngine(half).fingerprint, TorchEngine(other).fingerprint}
    assert len(prints) == 3
    assert same.fingerprint == llama.fingerprint
    monkeypatch.setattr("transformers.__version__", "0.0")
    assert TorchEngine(build("llama")).fingerprint not in prints
    student = TorchEngine(build("gla+softmax+linear_attention"))
    assert student.fingerprint not in prints


def test_a_resumed_run_has_the_answers_of_an_undisturbed_one(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: what is missing is computed in the batches in which it would have been."""
    requests = some_requests(40, seed=5)
    monkeypatch.setattr(engine, "sizes", replace(engine.sizes, tokens=128, floor=16))
    order = list(engine.score(requests))
    for done in (3, 17, 39):
        known = {index for index, _ in order[:done]}
        assert list(engine.score_rest(requests, known)) == order[done:]


def test_what_was_asked_before_is_not_asked_again(llama: TorchEngine) -> None:
    """Known requests spread over all batches belong to another run, and cost nothing."""
    requests = some_requests(40, seed=5)
    few = replace(llama.sizes, tokens=128, floor=16)
    known = set(range(0, 40, 3))
    rest = plan_rest(requests, range(40), known, few)
    assert sorted(number for batch in rest for number in batch.numbers) == sorted(set(range(40)) - known)
    assert len(rest) > TORN

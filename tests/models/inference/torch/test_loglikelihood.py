"""Log-likelihoods equal those of a plain forward pass, however requests are batched."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evalsuite.models.inference.batch_limits import compute_batch_limits, min_tokens_saved
from evalsuite.models.inference.batching import MAX_PARTIAL_BATCHES, make_remaining_batches
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.torch.loglikelihood import make_batches, tokens_read
from evalsuite.models.inference.torch.model_runner import ModelRunner

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
    responses = dict(engine.score(requests))
    assert sorted(responses) == list(range(len(requests)))
    for index, request in enumerate(requests):
        response = responses[index]
        assert response.error is None
        assert response.lengths == tuple(len(tokens) for tokens in request.continuations)
        for logprob, greedy, (expected, flag) in zip(
            response.logprobs, response.greedy, reference(engine, request), strict=True
        ):
            assert logprob == pytest.approx(expected, abs=TOLERANCE)
            assert greedy == flag


def test_common_prefixes_are_prefilled_once(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    prefixes = [tuple(draw.randrange(4, 400) for _ in range(80)) for _ in range(2)]
    requests = [
        replace(request, context=prefixes[number % 2] + request.context)
        for number, request in enumerate(some_requests(12, seed=4, longest=20))
    ] + some_requests(4, seed=5)
    prefilled: list[int] = []
    original = ModelRunner.prefill

    def counted(self: ModelRunner, rows: Any, **rest: Any) -> Any:
        prefilled.append(sum(map(len, rows)))
        return original(self, rows, **rest)

    monkeypatch.setattr(ModelRunner, "prefill", counted)
    responses = dict(engine.score(requests))
    own = sum(len(each.context) + sum(map(len, each.continuations)) for each in requests)
    assert sum(prefilled) <= own - 10 * 80
    for index, request in enumerate(requests):
        expected = reference(engine, request)
        assert responses[index].logprobs == pytest.approx([value for value, _ in expected], abs=TOLERANCE)


def test_equal_contexts_are_one_row(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = some_requests(2, seed=8, longest=40)
    requests = [
        replace(first, continuations=((5, 6, 7), (5, 8, 9))),
        other,
        replace(first, continuations=((5, 6), (10, 11, 12), (13,))),
    ]
    read: list[list[int]] = []
    original = ModelRunner.prefill

    def counted(self: ModelRunner, rows: Any, **rest: Any) -> Any:
        read.append([len(row) for row in rows])
        return original(self, rows, **rest)

    monkeypatch.setattr(ModelRunner, "prefill", counted)
    responses = dict(engine.score(requests))
    assert sum(map(sum, read)) == tokens_read(requests)
    assert sum(1 for lengths in read for length in lengths if length >= len(first.context)) == 1
    for index, request in enumerate(requests):
        expected = reference(engine, request)
        assert responses[index].logprobs == pytest.approx([value for value, _ in expected], abs=TOLERANCE)
        assert responses[index].greedy == tuple(flag for _, flag in expected)


def test_prefixes_that_save_less_than_two_passes_are_read_again() -> None:
    prefixes = [tuple(range(number, number + 80)) for number in range(3)]
    requests = [ScoreRequest((*prefix, 400 + number), ((5,),)) for prefix in prefixes for number in range(4)]
    limits = compute_batch_limits(torch.device("cpu"), 1_000_000, 1000, 4096)
    shared = [make_batches(requests, range(12), limits, saved) for saved in (0, 240, 241)]
    assert [sorted(batch.num_shared for batch in batches) for batches in shared] == [[80] * 3, [80] * 3, [0]]
    assert tokens_read(requests, 240) == 3 * 80 + 12
    assert tokens_read(requests, 241) == 12 * 81
    # The second pass of a group is launched where others would have been read.
    assert min_tokens_saved("cuda", 135_000_000) == 2 * int(1.5e13 / 135e6)
    assert min_tokens_saved("cpu", 135_000_000) < 64


def test_continuations_that_differ_in_their_last_token_need_no_pass_of_their_own(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a tokenizer has it that splits " B", but not " A", into a space and a letter.
    letters = ((9,), (7, 5, 11), (7, 5, 12), (7, 5, 13))
    requests = [replace(each, continuations=letters) for each in some_requests(6, seed=6)]
    # Here the last two read one token more than the first two.
    requests += [
        replace(each, continuations=((7, 11), (7, 12), (7, 5, 6), (7, 5, 8))) for each in requests[:2]
    ]
    prefilled: list[list[int]] = []
    original = ModelRunner.prefill

    def counted(self: ModelRunner, rows: Any, **rest: Any) -> Any:
        prefilled.append([len(row) for row in rows])
        return original(self, rows, **rest)

    monkeypatch.setattr(ModelRunner, "prefill", counted)
    responses = dict(engine.score(requests[:6]))
    longer = sorted(len(each.context) + 2 for each in requests[:6])
    assert sorted(length for lengths in prefilled for length in lengths) == longer
    prefilled.clear()
    responses |= {6 + index: response for index, response in engine.score(requests[6:])}
    assert [sorted(lengths) for lengths in prefilled] == [
        sorted(len(each.context) + 1 for each in requests[6:]),
        [1, 1, 1, 1],
    ]
    for index, request in enumerate(requests):
        for logprob, greedy, (expected, flag) in zip(
            responses[index].logprobs, responses[index].greedy, reference(engine, request), strict=True
        ):
            assert logprob == pytest.approx(expected, abs=TOLERANCE)
            assert greedy == flag


def test_greedy_flag_of_the_models_own_continuation(engine: TorchEngine) -> None:
    context = (5, 6, 7, 8)
    tokens = list(context)
    for _ in range(5):
        with torch.no_grad():
            tokens.append(int(engine.checkpoint.model(torch.tensor([tokens])).logits[0, -1].argmax()))
    own = tuple(tokens[4:])
    other = (*own[:-1], (own[-1] + 1) % 400)
    [(_, response)] = engine.score([ScoreRequest(context, (own, other, own[:1]))])
    assert response.greedy == (True, False, True)


@pytest.mark.parametrize(("batch_tokens", "lookahead"), [(1, 0), (40, 1), (300, 2)])
def test_batching_does_not_change_responses(llama: TorchEngine, batch_tokens: int, lookahead: int) -> None:
    requests = some_requests(30, seed=1)
    together = dict(llama.score(requests))
    other = TorchEngine(llama.checkpoint, batch_tokens=batch_tokens)
    other.lookahead = lookahead
    order = list(range(len(requests)))
    random.Random(2).shuffle(order)
    for place, response in other.score([requests[i] for i in order]):
        expected = together[order[place]]
        assert response.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
        assert response.greedy == expected.greedy


def test_invalid_requests_are_errors_not_zeros(llama: TorchEngine) -> None:
    good = ScoreRequest((5, 6), ((7,), (8, 9)))
    requests = [
        ScoreRequest((), ((7,),)),
        ScoreRequest((5,), ()),
        ScoreRequest((5,), ((7,), ())),
        ScoreRequest(tuple([5] * 256), ((7, 8),)),
        ScoreRequest((5,), ((400,),)),
        good,
    ]
    responses = dict(llama.score(requests))
    for index, words in enumerate(
        ["context is empty", "no continuation", "continuation 1 is empty", "258 tokens", "token id 400"]
    ):
        assert words in (responses[index].error or "")
        assert responses[index].logprobs == ()
    assert responses[5].error is None
    # One token fewer fits: the last one is predicted, never read.
    [(_, fits)] = llama.score([ScoreRequest(tuple([5] * 256), ((7,),))])
    assert fits.error is None


def test_nan_is_an_error_of_its_row_only(build: Callable[..., Any]) -> None:
    checkpoint = build("llama")
    with torch.no_grad():
        checkpoint.model.model.embed_tokens.weight[50] = torch.nan
    engine = TorchEngine(checkpoint)
    responses = dict(engine.score([ScoreRequest((5, 6), ((7, 8),)), ScoreRequest((5, 50), ((7, 8), (9,)))]))
    assert responses[0].error is None
    assert "not finite" in (responses[1].error or "")


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    llama: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models.inference.torch import engine

    sizes: list[int] = []
    original = engine.LoglikelihoodBatch

    def short_of_memory(runner: Any, requests: Any, limits: Any, num_shared: int) -> Any:
        sizes.append(len(requests))
        if len(requests) > 3:
            raise torch.OutOfMemoryError("simulated")
        return original(runner, requests, limits, num_shared)

    monkeypatch.setattr(engine, "LoglikelihoodBatch", short_of_memory)
    requests = some_requests(14, seed=3)
    responses = dict(llama.score(requests))
    monkeypatch.undo()
    expected = dict(llama.score(requests))
    assert max(sizes) > 3
    assert sorted(responses) == list(range(14))
    for index, response in responses.items():
        assert response.logprobs == pytest.approx(expected[index].logprobs, abs=TOLERANCE)


def test_fingerprints_cover_what_changes_numerics(
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
    monkeypatch.setattr("evalsuite.models.inference.in_process.transformers.__version__", "0.0")
    assert TorchEngine(build("llama")).fingerprint not in prints
    student = TorchEngine(build("gla+softmax+linear_attention"))
    assert student.fingerprint not in prints


def test_a_resumed_run_equals_an_uninterrupted_one(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: missing responses are computed in the batches of the uninterrupted run."""
    requests = some_requests(40, seed=5)
    monkeypatch.setattr(engine, "limits", replace(engine.limits, max_tokens=128, min_tokens=16))
    order = list(engine.score(requests))
    for done in (3, 17, 39):
        completed = {index for index, _ in order[:done]}
        assert list(engine.score_remaining(requests, completed)) == order[done:]


def test_completed_requests_of_another_run_are_not_recomputed(llama: TorchEngine) -> None:
    """Completed requests that are spread over all batches belong to another run and are skipped."""
    requests = some_requests(40, seed=5)
    limits = replace(llama.limits, max_tokens=128, min_tokens=16)
    completed = set(range(0, 40, 3))
    batches = make_remaining_batches(
        range(40), completed, lambda indices: make_batches(requests, indices, limits)
    )
    assert sorted(i for batch in batches for i in batch.indices) == sorted(set(range(40)) - completed)
    assert len(batches) > MAX_PARTIAL_BATCHES


def test_batches_in_flight_change_no_response(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = some_requests(20)
    requests[7] = ScoreRequest((), ((5,),))
    monkeypatch.setattr(engine, "limits", replace(engine.limits, max_tokens=128, min_tokens=16))
    expected = dict(engine.score(requests))
    monkeypatch.setattr(engine, "lookahead", 1)
    assert dict(engine.score(requests)) == expected
    assert expected[7].error

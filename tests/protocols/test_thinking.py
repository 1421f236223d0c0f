"""Thinking budgets: which second request follows, what the two responses make, and what identifies them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse, SamplingParams
from evalsuite.protocols.request_set import RequestSet
from evalsuite.protocols.thinking import FORCED_CLOSE, ThinkingRequest, generate

CLOSE = (90, 91)
SAMPLING = SamplingParams(max_new_tokens=3, thinking_budget=4, temperature=0.5, stop=("#",))


def request(prompt: tuple[int, ...] = (1, 2), **changes: Any) -> ThinkingRequest:
    return ThinkingRequest(prompt, replace(SAMPLING, **changes), 7, CLOSE, in_reasoning=True)


class Scripted:
    """Answers from a table: (prompt, longest response) → response; keeps the requests it gets."""

    max_length = 100

    def __init__(self, responses: dict[tuple[tuple[int, ...], int], GenerateResponse]) -> None:
        self.responses, self.seen = responses, list[GenerateRequest]()

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        for index, each in reversed(list(enumerate(requests))):
            self.seen.append(each)
            yield index, self.responses[each.prompt, each.sampling.max_new_tokens]


def test_open_thought_is_closed_and_the_answer_follows() -> None:
    engine = Scripted(
        {
            ((1, 2), 4): GenerateResponse((3, 3, 3, 3), "let me see", "length"),
            ((1, 2, 3, 3, 3, 3, *CLOSE), 3): GenerateResponse((5,), " 42", "eos"),
        }
    )
    ((index, found),) = generate(engine, [request()])  # type: ignore[arg-type]  # of an engine, what it needs
    assert index == 0
    assert found.tokens == (3, 3, 3, 3, *CLOSE, 5)
    assert (found.text, found.finish_reason) == (f"let me see{FORCED_CLOSE} 42", "eos")
    assert request().is_forced(found)
    assert all(each.sampling.thinking_budget is None for each in engine.seen)
    assert all(each.sampling.stop == ("#",) for each in engine.seen)
    first, second = engine.seen
    assert first.seed == 7
    assert second.seed != first.seed


def test_ended_thought_is_never_closed_again() -> None:
    short = GenerateResponse((3, 4), "so</think>42", "eos")
    whole = GenerateResponse((3, 4, 5, 5, 5), "so</think>42 is it", "eos")
    engine = Scripted(
        {
            ((1, 2), 4): short,
            ((8,), 4): GenerateResponse((3, 4, 5, 5), "so</think>42 is", "length"),
            ((8,), 7): whole,
        }
    )
    plain = GenerateRequest((1, 2), replace(SAMPLING, max_new_tokens=4, thinking_budget=None))
    found = dict(generate(engine, [request(), request((8,)), plain]))  # type: ignore[arg-type]
    assert found == {0: short, 1: whole, 2: short}
    assert not any(request(prompt).is_forced(found[index]) for index, prompt in ((0, (1, 2)), (1, (8,))))


def test_errors_and_thoughts_without_room_stay_as_they_are() -> None:
    thought = GenerateResponse((3, 3, 3, 3), "let me see", "length")
    failed = GenerateResponse.from_error("out of memory")
    engine = Scripted({((1, 2), 4): thought, ((1, 2, 3, 3, 3, 3, *CLOSE), 3): failed, ((9,), 4): failed})
    assert dict(generate(engine, [request(), request((9,))])) == {0: failed, 1: failed}  # type: ignore[arg-type]
    engine.max_length = 7
    assert dict(generate(engine, [request()])) == {0: thought}  # type: ignore[arg-type]
    assert request().is_complete(thought, 7)
    assert not request().is_complete(thought, 100)


@pytest.mark.parametrize(
    ("tokens", "max_length", "complete"),
    [
        ((3, 3, 3, 3, *CLOSE, 5, 5, 5), 100, True),
        ((3, 3, 3, 3, *CLOSE, 5), 100, False),
        ((3, 3, 3, 3, *CLOSE, 5), 8, True),
        ((3, 4, 5, 5, 5, 5, 5), 100, True),
        ((3, 4, 5, 5, 5), 100, False),
    ],
)
def test_response_that_more_positions_would_lengthen_is_incomplete(
    tokens: tuple[int, ...], max_length: int, complete: bool
) -> None:
    response = GenerateResponse(tokens, "x", "length")
    assert request().is_complete(response, max_length) is complete
    assert request().max_tokens == 4 + 2 + 3
    assert request().is_complete(replace(response, finish_reason="eos"), max_length)


def test_budget_and_closing_text_are_identity() -> None:
    plain = GenerateRequest((1, 2), replace(SAMPLING, thinking_budget=None), 7)
    others = [
        plain,
        GenerateRequest((1, 2), replace(SAMPLING, thinking_budget=None, max_new_tokens=4), 7),
        request(thinking_budget=5),
        replace(request(), close=(90,)),
        replace(request(), in_reasoning=False),
        request(),
    ]
    assert len({each.key() for each in others}) == len(others)
    assert plain.key()[2] == "t0.5-p1-k0-n3-stop" + plain.key()[2].partition("stop")[2]
    assert request().key()[2] == plain.key()[2] + "-think4"
    with pytest.raises(ConfigError, match="thinking_budget = 0"):
        SamplingParams(3, thinking_budget=0)


def test_request_set_holds_what_closes_a_thought() -> None:
    found = RequestSet("d", None, "h", prompt=(1, 2), in_reasoning=True, close=CLOSE)
    assert RequestSet.from_row(found.to_row()) == found
    assert "close" not in RequestSet("d", None, "h", prompt=(1, 2)).to_row()
    assert found.generate_request(SAMPLING, 7) == request()
    plain = replace(SAMPLING, thinking_budget=None)
    assert found.generate_request(plain, 7) == GenerateRequest((1, 2), plain, 7)

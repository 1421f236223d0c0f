"""Reasoning blocks in responses: what is scored, what is not, and how a response without an answer ends."""

from typing import Any

import pytest

from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.reasoning import UNCLOSED, answer_of, opens_reasoning
from evalsuite.protocols.request_set import RequestSet, Score
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import with_ids

ARC = {
    "id": "1",
    "question": "Which is largest?",
    "choices": {"text": ["an ant", "an elephant", "a cat"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
THINKS_RIGHT_SAYS_WRONG = "<think>\nANSWER: B\n</think>\n\nANSWER: C"


def score(text: str, finish: str = "eos", *, keep: bool = False, in_reasoning: bool = False) -> Score:
    benchmark = load_benchmark("arc_easy")
    assert benchmark.generation is not None
    how = benchmark.generation.model_copy(update={"reasoning": "keep" if keep else "strip"})
    harness = GenerationBenchmark(benchmark.model_copy(update={"generation": how}), with_ids([(ARC, None)]))
    response = GenerateResponse(tuple(range(len(text.split()))), text, finish)
    return harness.score(0, response, in_reasoning=in_reasoning)


@pytest.mark.parametrize(
    ("response", "in_reasoning", "answer"),
    [
        ("B", False, "B"),
        ("  indented code\n", False, "  indented code\n"),
        ("<think>\nA?\n</think>\n\n  B", False, "  B"),
        ("A?\n</think>\n\nB", True, "B"),
        ("A?\n</think>\n\nB", False, "B"),
        ("<think>A</think>no<think>C</think>B", False, "B"),
        ("<think>A</think>", False, ""),
        ("A?", True, None),
        ("\n<think>A?", False, None),
        ("<think>A</think>\n<think>C", False, None),
        ("The tag <think> opens a block.", False, "The tag <think> opens a block."),
    ],
)
def test_answer_follows_the_last_block(response: str, in_reasoning: bool, answer: str | None) -> None:
    assert answer_of(response, in_reasoning=in_reasoning) == answer


def test_prompt_that_ends_with_the_opening_tag_begins_reasoning() -> None:
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_reasoning("What does <think> mean?\n<assistant>")


def test_only_the_answer_is_scored() -> None:
    scored = score(THINKS_RIGHT_SAYS_WRONG)
    assert (scored.values, scored.detail["extracted"]) == ({"accuracy": 0.0}, "C")
    assert scored.detail["response"] == THINKS_RIGHT_SAYS_WRONG
    scored = score("<think>\nANSWER: C\n</think>\n\nANSWER: B")
    assert (scored.values, scored.outcome) == ({"accuracy": 1.0}, "ok")
    kept = score("<think>\nANSWER: B\n", keep=True)
    assert (kept.values, "reason" in kept.detail) == ({"accuracy": 1.0}, False)


@pytest.mark.parametrize(("finish", "outcome"), [("length", "truncated"), ("eos", "extraction_failed")])
@pytest.mark.parametrize("begun", [True, False])
def test_response_without_an_answer_is_wrong_and_says_why(finish: str, outcome: str, begun: bool) -> None:
    text = "The answer might be B.\nANSWER: B"
    scored = score(text if begun else f"<think>{text}", finish, in_reasoning=begun)
    assert (scored.values, scored.outcome) == ({"accuracy": 0.0}, outcome)
    assert scored.detail["reason"] == UNCLOSED
    assert scored.detail["extracted"] == ""


def test_metric_that_accepts_an_empty_response_does_not_reward_reasoning() -> None:
    row: dict[str, Any] = {"prompt": "p", "answers": [""]}
    benchmark = load_benchmark("niah_single_1")
    harness = GenerationBenchmark(benchmark, with_ids([(row, None)]))
    response = GenerateResponse((1, 2), "<think>so", "length")
    assert harness.score(0, GenerateResponse((1,), "so", "length")).values["accuracy"] == 1
    assert harness.score(0, response).values["accuracy"] == 0


def test_truncated_answer_after_reasoning_is_truncated() -> None:
    row = {"text": "Maker:", "value": "Aven", "doc_id": "1"}
    harness = GenerationBenchmark(load_benchmark("fda"), with_ids([(row, None)]))
    response = GenerateResponse((1, 2, 3), "<think>it is Aven</think>\nIt is made by", "length")
    scored = harness.score(0, response)
    assert (scored.values, scored.outcome) == ({"contains": 0.0}, "truncated")


def test_request_set_keeps_whether_reasoning_has_begun() -> None:
    begun = RequestSet("d", None, "h", prompt=(1, 2), in_reasoning=True)
    assert RequestSet.from_row(begun.to_row()) == begun
    assert "in_reasoning" not in RequestSet("d", None, "h", prompt=(1, 2)).to_row()

"""SQuADv2: lm-eval's prompt, and the official script's F1 and exact match."""

from typing import Any

import pytest

from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import with_ids


def row(*answers: str) -> dict[str, Any]:
    return {
        "id": "1",
        "title": "Normans",
        "context": "The Normans gave their name to Normandy, a region in France.",
        "question": "What is Normandy?",
        "answers": {"text": list(answers), "answer_start": [0] * len(answers)},
    }


def harness(*answers: str) -> GenerationBenchmark:
    return GenerationBenchmark(load_benchmark("squadv2"), with_ids([(row(*answers), None)]))


def test_prompt_equals_lm_eval() -> None:
    from lm_eval.tasks.squadv2.task import SQuAD2

    reference = SQuAD2.__new__(SQuAD2)
    made = harness("a region in France")
    assert made.text(0, None, chat_template=True) == reference.doc_to_text(row())
    benchmark = load_benchmark("squadv2")
    assert benchmark.generation is not None
    (request,) = [
        each.arguments[1]
        for each in reference.construct_requests(row(), "", metadata=("squadv2", 0, 1))
        if each.request_type == "generate_until"
    ]
    assert list(benchmark.generation.sampling.stop) == request["until"]


@pytest.mark.parametrize(
    ("answers", "response", "f1", "exact"),
    [
        (("a region in France",), " Region in France.", 1, 1),
        # Three of five words are right, and they are all three of the answer's: 2 · 3/5 · 1 / (3/5 + 1).
        (("the region in France",), "a nice region in northern France", 0.75, 0),
        (("Rollo", "France"), "France", 1, 1),
        (("France",), "England", 0, 0),
        (("France",), "", 0, 0),
        ((), "", 1, 1),
        ((), "The.", 1, 1),
        ((), "France", 0, 0),
        # An answer without a word does not count.
        (("the", "France"), "France", 1, 1),
        (("the", "France"), "", 0, 0),
    ],
)
def test_f1_and_exact_match(answers: tuple[str, ...], response: str, f1: float, exact: float) -> None:
    scored = harness(*answers).score(0, GenerateResponse((1,), response, "stop"))
    assert scored.values == {"f1": pytest.approx(f1), "exact": exact}


def test_question_without_an_answer_has_a_target() -> None:
    scored = harness().score(0, GenerateResponse((1,), " in France", "stop"))
    assert (scored.detail["target"], scored.detail["extracted"]) == ("unanswerable", "in France")

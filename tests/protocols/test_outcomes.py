"""The rules for how an answer ended, on what SmolLM2-135M-Instruct really wrote (greedy, 160 tokens at most).

The labels are a reader's: `looped` where one phrase fills the end of the answer three times or more,
`truncated` where the answer was still going somewhere else. A story that has said the same two sentences
twice is not a loop yet; given more tokens it becomes one and is found then.
"""

import json
from pathlib import Path

import pytest

from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.outcomes import classify_outcome, is_looping

GENERATION = json.loads((Path(__file__).parent / "golden" / "generation_smollm2.json").read_text())


def answer_of(row: dict[str, object]) -> GenerateResponse:
    return GenerateResponse.from_dict(row)


@pytest.mark.parametrize("row", GENERATION, ids=[row["prompt"][:30] for row in GENERATION])
def test_outcomes_of_real_responses(row: dict[str, object]) -> None:
    answer = answer_of(row)
    # A scorer that finds nothing in a response that did not end, and something in one that did.
    extracted = "" if answer.finish_reason == "length" else "something"
    assert classify_outcome(answer, extracted, correct=False) == row["label"]
    assert classify_outcome(answer, extracted, correct=True) == "ok"


def test_outcomes_cover_all_labels() -> None:
    labels = [row["label"] for row in GENERATION]
    assert labels.count("looped") >= 3
    assert labels.count("truncated") >= 3
    assert labels.count("ok") >= 5


def test_loop_is_found_at_any_cut() -> None:
    """A loop that was cut in the middle of its phrase is one all the same; a few repeated words are not."""
    for row in GENERATION:
        if row["label"] == "looped":
            assert all(is_looping(row["tokens"][:-cut]) for cut in range(1, 8))
        else:
            assert not is_looping(row["tokens"])


def test_a_loop_is_three_repeats_over_24_tokens() -> None:
    assert is_looping([0, *[1, 2] * 12])
    assert not is_looping([0, *[1, 2] * 11, 1])
    assert is_looping([0, *list(range(10, 20)) * 3])
    assert not is_looping([0, *list(range(11, 20)), *list(range(10, 20)) * 2])

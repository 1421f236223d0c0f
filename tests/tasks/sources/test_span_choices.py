"""Choices of extractive reading questions."""

from typing import Any

import pytest

from evalsuite.foundation import DataError
from evalsuite.tasks.sources.transforms.span_choices import span_choices

PASSAGE = (
    "The old mill stood in Salford. It was owned by Edith Crane, who sold it in 1912 to Tom Hale of Bolton."
)


def row(question: str, *answers: str) -> dict[str, Any]:
    return {"context": PASSAGE, "question": question, "answers": {"text": list(answers)}}


def test_wrong_choices_are_other_answers_then_names_of_the_passage() -> None:
    first, second = span_choices(
        [row("Who owned it?", "Edith Crane"), row("When was it sold?", "1912")], None
    )
    assert first["choices"][first["gold"]] == " Edith Crane"
    assert " 1912" in first["choices"]
    assert " Edith Crane" in second["choices"]
    assert len(set(first["choices"])) == 4
    assert first["prompt"] == f"{PASSAGE}\nQuestion: Who owned it?\nAnswer:"
    assert first["answers"] == {"text": ["Edith Crane"]}


def test_a_wrong_choice_shares_no_word_with_any_answer() -> None:
    rows = [
        row("Who owned it?", "Edith Crane", "Crane"),
        row("Her first name?", "Edith"),
        row("When?", "1912"),
    ]
    choices = span_choices(rows, None)[0]["choices"]
    assert " Edith" not in choices


def test_other_columns_of_a_passage_are_read() -> None:
    found = span_choices([{"text": PASSAGE, "question": "When?", "answers": ["1912", "in 1912"]}], None)[0]
    assert found["answers"] == {"text": ["1912", "in 1912"]}
    assert found["context"] == PASSAGE


def test_a_passage_without_another_span_is_refused() -> None:
    with pytest.raises(DataError, match=r"the passage of 'Who.' has no span besides the answer"):
        span_choices([{"context": "It is Tom.", "question": "Who?", "answers": {"text": ["Tom"]}}], None)


def test_a_question_without_an_answer_is_refused() -> None:
    with pytest.raises(DataError, match=r"the question 'Who.' has no answer"):
        span_choices([row("Who?")], None)

"""The English tasks: rows, right answers, choices, and the split between training and evaluation."""

from itertools import islice

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.tasks.synthetic.english import TASKS, questions, rows
from evalsuite.tasks.synthetic.english.instructions import OPERATIONS


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_different_reproducible_and_have_one_right_choice(task: str) -> None:
    found = rows(task, count=300)
    assert found[:50] == rows(task, count=50)
    assert found[:50] != rows(task, count=50, seed=1)
    assert len({row["prompt"] for row in found}) == 300
    for row in found:
        assert len(set(row["choices"])) == 4
        assert row["choices"][row["gold"]] == f" {row['answers'][0]}"
    assert len({row["gold"] for row in found}) == 4


@pytest.mark.parametrize("task", TASKS)
def test_no_evaluated_question_is_ever_a_training_question(task: str) -> None:
    evaluated = {row["prompt"] for row in rows(task, count=500)}
    trained = {question.prompt for seed in range(3) for question in islice(questions(task, seed=seed), 2000)}
    assert not evaluated & trained


def test_arithmetic_is_right() -> None:
    for question in islice(questions("arithmetic"), 500):
        numbers = [
            int(word)
            for word in question.prompt.replace("?", " ").replace(".", " ").split()
            if word.isdigit()
        ]
        a, b = numbers[:2]
        assert int(question.answer) in {a + b, a - b, b - a, a * b}


@pytest.mark.parametrize(
    ("start", "answer"),
    [
        ("Write the words in alphabetical order", "apple, lake, pencil"),
        ("Write the words in reverse order", "lake, apple, pencil"),
        ("Write the words as a list", "- pencil\n- apple\n- lake"),
        ("Write the words as a JSON list", '["pencil", "apple", "lake"]'),
        ("Write the first letter", "p a l"),
        ("Write only the longest word", "pencil"),
        ("Write how many words", "3"),
    ],
)
def test_instructions_have_one_result(start: str, answer: str) -> None:
    (operation,) = [value for key, value in OPERATIONS.items() if key.startswith(start)]
    assert operation(["pencil", "apple", "lake"]) == answer


def test_an_unknown_task_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown task 'arithmetics'; did you mean 'arithmetic'"):
        rows("arithmetics", count=1)

"""The scorer of questions that are answered in words."""

import pytest

from evalsuite.protocols.scorers import SCORERS


@pytest.mark.parametrize(
    ("response", "answers", "accuracy", "contains"),
    [
        ("Goethe", ["Goethe"], 1, 1),
        ("\n goethe.\nAnd more", ["Goethe"], 1, 1),
        ("The answer is Goethe.", ["Goethe"], 1, 1),
        ("Answer: **Goethe**", ["Goethe"], 1, 1),
        ("It was Goethe.", ["Goethe"], 0, 1),
        ("Goethes", ["Goethe"], 0, 0),
        ("I do not know", ["Goethe"], 0, 0),
        ("", ["Goethe"], 0, 0),
        ("the moon", ["moon", "a star"], 1, 1),
        ("star", ["moon", "a star"], 1, 1),
        ("3", ["-3"], 0, 0),
        ("35", ["3.5"], 0, 0),
        ("3.5", ["3.5"], 1, 1),
        ("!", ["?"], 0, 0),
        ("?", ["?"], 1, 1),
    ],
)
def test_the_first_line_is_compared(response: str, answers: list[str], accuracy: int, contains: int) -> None:
    found = SCORERS["answer"]({"answers": answers}, response)
    assert found.values == {"accuracy": accuracy, "contains": contains}
    assert found.target == " | ".join(answers)

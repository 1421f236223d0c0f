"""A count of one has no plural, wherever a text states it."""

import re
from pathlib import Path

import pytest

import evalsuite
from evalsuite.foundation import counted

ROOT = Path(evalsuite.__file__).parents[1]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 students"), (1, "1 student"), (33412, "33,412 students")]
)
def test_a_noun_has_the_form_of_its_number(number: int, text: str) -> None:
    assert counted(number, "student") == text


def test_no_text_forms_a_plural_of_its_own() -> None:
    """By hand it was forgotten where a count is seldom one."""
    rooms = ("evalsuite", "tasks", "models", "distill", "reports")
    paths = [path for room in rooms for kind in ("py", "j2") for path in (ROOT / room).rglob(f"*.{kind}")]
    by_hand = re.compile(r"""(['"])s\1 if |else (['"])s\2""")
    found = [path.name for path in paths if by_hand.search(path.read_text())]
    assert len(paths) > 500
    assert found == ["counts.py"]

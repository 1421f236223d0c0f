"""Scoring rules of pocket responses."""

import pytest

from evalsuite.foundation import DataError
from evalsuite.tasks.synthetic.pocket import score_response


def _row(answer: str, rule: str, form: dict[str, object] | None = None) -> dict[str, object]:
    return {"answer": answer, "rule": rule, "form": form}


@pytest.mark.parametrize(
    ("response", "correct"),
    [(" goat\n", True), ("goat", True), ("goat\nQuestion: more", True), ("goats", False), ("a goat", False)],
)
def test_exact(response: str, correct: bool) -> None:
    assert score_response(_row("goat", "exact"), response).correct is correct


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        (" 1234567\n", True),
        (" it is 1234567.", True),
        (" 12345678\n", False),
        ("\nOther line 1234567", True),
        (" 123\n4567", False),
        ("1234567-1", False),
    ],
)
def test_contains_matches_whole_words(response: str, correct: bool) -> None:
    assert score_response(_row("1234567", "contains"), response).correct is correct


@pytest.mark.parametrize(
    ("response", "correct", "extracted"),
    [
        (" 1 + 2 = 3. 3 + 4 = 7. The answer is 7.\n", True, "7"),
        (" The answer is 7. The answer is 8.", False, "8"),
        (" The answer is 77.", False, "77"),
        (" 3 + 4 = 7.", False, None),
        (" The answer is -7.", False, "-7"),
    ],
)
def test_final_number(response: str, correct: bool, extracted: str | None) -> None:
    scored = score_response(_row("7", "final_number"), response)
    assert scored.correct is correct
    assert scored.extracted == extracted


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        (" cat, dog red lamp\n", True),
        (" cat, owl red lamp\n", True),
        (" dog, cat red lamp\n", False),
        (" cat, cat red lamp\n", False),
        (" cat, baker red lamp\n", False),
        (" cat, dog, owl red lamp\n", False),
        (" cat; dog red lamp\n", False),
        (" cat, dog lamp\n", False),
        (" red lamp\n", False),
    ],
)
def test_list_format(response: str, correct: bool) -> None:
    form = {
        "kind": "list",
        "category": "animals",
        "size": 2,
        "separator": ", ",
        "begin": "cat",
        "end": "red lamp",
    }
    assert score_response(_row("cat, crow red lamp", "format", form), response).correct is correct


def test_text_format() -> None:
    row = _row("[ red ] lamp", "format", {"kind": "text"})
    assert score_response(row, " [ red ] lamp\n").correct
    assert not score_response(row, " [ red lamp ]\n").correct


def test_empty_response_extracts_nothing() -> None:
    for rule in ("exact", "contains", "final_number"):
        scored = score_response(_row("7", rule), " \n ")
        assert not scored.correct
        assert scored.extracted is None


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(DataError, match="did you mean 'exact'"):
        score_response(_row("7", "exat"), "7")

"""The list of outcomes: VOCABULARY's order, and the documentation's table."""

from pathlib import Path

from evalsuite.foundation.taxonomy import FAILURES, OUTCOME_MEANINGS, OUTCOMES, names_answer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "run-folder.md"


def test_outcomes_and_failures() -> None:
    assert OUTCOMES == ("ok", "guessed", "ran_on", "extraction_failed", "truncated", "looped", "error")
    assert OUTCOMES[1:-1] == FAILURES
    assert [name for name in OUTCOMES if names_answer(name)] == ["ok", "truncated", "looped"]


def test_documented_outcomes_are_the_outcomes() -> None:
    rows = [
        f"| `{name}` | {each.title} | {each.meaning} | {'yes' if each.names_answer else 'no'} |"
        for name, each in OUTCOME_MEANINGS.items()
    ]
    assert "\n".join(rows) in PAGE.read_text()

"""Scorers of short answers by their text."""

import pytest

from evalsuite.protocols.scorers import SCORERS

OPTIONS = {"choices": ["water", "salt water", "the Moon", "No."], "gold": 1}


@pytest.mark.parametrize(
    ("response", "extracted", "accuracy"),
    [
        ("salt water", "salt water", 1.0),
        ("Salt Water.", "salt water", 1.0),
        ("The answer is salt water.\nwater", "salt water", 1.0),
        ("water", "water", 0.0),
        ("moon", "the Moon", 0.0),
        ("no", "No.", 0.0),
        ("water or the Moon", "", 0.0),
        ("air", "", 0.0),
        ("saltwater", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_an_option_is_named_by_its_text(response: str, extracted: str, accuracy: float) -> None:
    output = SCORERS["option"](OPTIONS, response)
    assert (output.extracted, output.values["accuracy"], output.target) == (extracted, accuracy, "salt water")


@pytest.mark.parametrize(
    ("choices", "response", "extracted"),
    [
        (["+1", "-1", "0"], "+1", "+1"),
        (["+1", "-1", "0"], "The charge is -1.", "-1"),
        (["+1", "-1", "0"], "(+1)", "+1"),
        (["+1", "-1", "0"], "1", ""),
        (["+1", "-1", "0"], "+1.5", ""),
        (["+1", "-1", "0"], "0", "0"),
        (["cat", "the cat"], "cat", "cat"),
        (["cat", "the cat"], "The cat", "the cat"),
        (["f(x)", "f'(x)"], "f'(x)", "f'(x)"),
        (["cat", "Cat"], "cat", ""),
        (["cat", "cat"], "cat", ""),
    ],
)
def test_options_that_differ_only_in_what_is_ignored_are_told_apart(
    choices: list[str], response: str, extracted: str
) -> None:
    output = SCORERS["option"]({"choices": choices, "gold": 0}, response)
    assert (output.extracted, output.values["accuracy"]) == (extracted, float(extracted == choices[0]))


@pytest.mark.parametrize(
    ("response", "accuracy"),
    [("- a\n- b", 1.0), (" - a \n- b\n", 1.0), ("- a - b", 0.0), ("- A\n- b", 0.0), ("", 0.0)],
)
def test_exact_text_keeps_its_lines(response: str, accuracy: float) -> None:
    assert SCORERS["exact"]({"answers": ["- a\n- b"]}, response).values["accuracy"] == accuracy

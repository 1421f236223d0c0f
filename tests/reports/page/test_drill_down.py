"""The drill-down shows the choice that the metric picked, not the most likely one."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.reports.page import drill_down

ROW: dict[str, Any] = {
    "values": {"acc": 0.0, "acc_norm": 1.0},
    "choices": {"acc": 0, "acc_norm": 1},
    "outcome": "ok",
    "detail": {"logprobs": [-5.0, -9.0, -6.0], "gold": 1},
}


@pytest.mark.parametrize(("metric", "text"), [("acc", "choice A"), ("acc_norm", "choice B")])
def test_shown_choice_is_that_of_the_metric(metric: str, text: str) -> None:
    shown = drill_down._response(ROW, metric)
    assert shown["text"] == text
    assert (shown["text"] == "choice B") == (shown["value"] == 1)


def test_unknown_choice_is_not_shown() -> None:
    assert "text" not in drill_down._response(ROW | {"choices": {}}, "acc_norm")
    assert drill_down._response(ROW | {"choices": {}}, "acc_norm")["logprobs"] == [-5.0, -9.0, -6.0]


def test_choices_beyond_z_are_numbered_on_the_page() -> None:
    assert drill_down._choice(26) == "choice 27"
    script = Path(drill_down.__file__).with_name("script.js").read_text()
    assert "index < 26 ?" in script

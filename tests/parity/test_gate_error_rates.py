"""Error rates of the gate in a few pairs of each setting; `gate_error_rates` runs all of them."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parity.gate_error_rates import GUESSING, ON_THRESHOLD, Setting, main, most, outcomes

PAIRS = 8


@pytest.mark.parametrize("setting", ON_THRESHOLD[2:6:2], ids=lambda setting: setting.name)
def test_a_recipe_on_the_threshold_is_mostly_undecided(setting: Setting) -> None:
    found = outcomes(replace(setting, documents=300), PAIRS)
    assert max(found[0], found[1]) <= most(PAIRS)


@pytest.mark.parametrize("setting", GUESSING[:3], ids=lambda setting: setting.name)
def test_guesses_never_pass(setting: Setting) -> None:
    assert outcomes(replace(setting, documents=300), PAIRS)[0] == 0


def test_a_sound_recipe_passes_and_a_bad_one_fails() -> None:
    sound, bad = (
        outcomes(replace(ON_THRESHOLD[2], recovery=recovery, documents=600), 3) for recovery in (1.0, 0.7)
    )
    assert sound[0] >= 2
    assert bad[1] == 3


def test_command_writes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.parity.gate_error_rates.ON_THRESHOLD", (ON_THRESHOLD[0],))
    monkeypatch.setattr("tests.parity.gate_error_rates.GUESSING", ())
    assert main(["--out", str(tmp_path), "--pairs", "2"]) in (0, 1)
    (row,) = csv.DictReader((tmp_path / "gate.csv").open())
    assert row["setting"] == ON_THRESHOLD[0].name

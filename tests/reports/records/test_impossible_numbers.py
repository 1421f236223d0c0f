"""Numbers that no evaluation can have: chance levels outside 0 to 1 or two of a document, perplexities."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import policy_from_options, run_gate
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import edit_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made: Path = make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark("facts", "Facts", "knowledge", 40, protocols=("loglikelihood",)),
            SyntheticBenchmark(
                "wiki", "Wiki", "language_modeling", 20, None, (), ("loglikelihood",), perplexity=True
            ),
        ],
        [
            SyntheticCheckpoint("t", lambda b, *_: 3.0 if b == "wiki" else 0.8, "teacher"),
            SyntheticCheckpoint("s", lambda b, *_: 3.0 if b == "wiki" else 0.8),
        ],
    )
    return made


def change(run: Path, benchmark: str, **fields: Any) -> None:
    """Change the fifth score row of the student."""

    def edited(i: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | fields if (row["checkpoint"], i) == ("s", 5) else row

    edit_rows(run, benchmark, "loglikelihood", edited)


@pytest.mark.parametrize(
    ("benchmark", "fields", "message"),
    [
        ("facts", {"chance": -5.0}, "'chance' is a fraction between 0 and 1"),
        ("facts", {"chance": 1.5}, "'chance' is a fraction between 0 and 1"),
        ("facts", {"chance": 0.999}, r"two chance levels, 0\.25 and 0\.999"),
        ("wiki", {"values": {"nll": -3.0, "words": 60.0}}, "row 5: nll = -3; .* a perplexity below 1"),
        ("wiki", {"values": {"nll": 3.0, "words": -60.0}}, "row 5: -60 words; expected 0 or more"),
    ],
)
def test_impossible_numbers_are_refused(
    run: Path, benchmark: str, fields: dict[str, Any], message: str
) -> None:
    run_gate([run], policy_from_options(min_recovery=0.5))
    change(run, benchmark, **fields)
    with pytest.raises(DataError, match=message):
        run_gate([run], policy_from_options(min_recovery=0.5))


def test_two_runs_with_two_chance_levels_of_a_document_are_refused(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    run_gate([run, other], policy_from_options(min_recovery=0.5))
    change(other, "facts", chance=0.5)
    with pytest.raises(DataError, match=r"two different scores for document .* chance level"):
        run_gate([run, other], policy_from_options(min_recovery=0.5))

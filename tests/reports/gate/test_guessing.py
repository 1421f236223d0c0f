"""A student that guesses does not pass, however much of its teacher's score guessing reaches."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, policy_from_options, run_gate
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def run_of(
    folder: Path,
    teacher: float,
    student: float,
    *,
    chance: float | None = 0.5,
    documents: int = 1200,
    protocols: tuple[str, ...] = ("loglikelihood",),
) -> Path:
    """A teacher and a student of these scores on a benchmark."""
    made: Path = make_run(
        folder / "run",
        [SyntheticBenchmark("f", "F", "knowledge", documents, chance=chance, protocols=protocols)],
        [
            SyntheticCheckpoint("t", lambda *_: teacher, "teacher"),
            SyntheticCheckpoint("s", lambda *_: student),
        ],
    )
    return made


def policy(**rule: Any) -> Policy:
    """A policy of one rule."""
    return parse({"rules": [rule]}, Policy, "policy")


@pytest.mark.parametrize("metric", ["recovery", "capped_recovery"])
def test_a_student_that_lost_most_of_the_lead_fails(tmp_path: Path, metric: str) -> None:
    run = run_of(tmp_path, 0.6, 0.51)
    (result,) = run_gate([run], policy(metric=metric, min=0.7)).results
    assert result.point > 0.8
    assert result.outcome == "regression"
    assert result.kept < 0.5
    assert "% of the teacher's lead over chance, required at least 50.0 %, proven (p" in result.sentence
    # The demand is that of the threshold where it is lower, so that chance 0 changes nothing.
    free = run_of(tmp_path / "free", 0.6, 0.25, chance=0.0)
    (result,) = run_gate([free], policy(metric=metric, min=0.3)).results
    assert (result.outcome, result.kept) == ("pass", None)


def test_a_drop_is_compared_with_the_lead(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0.58, 0.5, documents=4000)
    (result,) = run_gate([run], policy(metric="drop", max=30)).results
    assert result.outcome == "regression"
    assert result.point < 15
    assert "% of the teacher's lead over chance, required at least 50.0 %" in result.sentence


def test_a_lead_that_could_be_luck_is_not_measured(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0.54, 0.54)
    for scope in ({}, {"scope": "all"}, {"benchmark": "f"}, {"category": "knowledge"}):
        for rule in ({"metric": "recovery", "min": 0.7}, {"metric": "drop", "max": 5}):
            verdict = run_gate([run], policy(**rule, **scope))
            assert verdict.exit_code == 3
            assert "above chance" in verdict.results[0].why


def test_an_unknown_chance_level_is_measured_only_where_the_rule_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0.6, 0.6, chance=None)
    verdict = run_gate([run], policy_from_options(min_recovery=0.8))
    assert verdict.exit_code == 3
    assert "its chance level is not known" in verdict.results[0].why
    assert run_gate([run], policy(metric="recovery", min=0.8, scope="all")).exit_code == 0


def test_the_default_is_both_protocols(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0.8, 0.8, protocols=("loglikelihood", "generation"))
    results = run_gate([run], policy_from_options(min_recovery=0.5)).results
    assert [each.name for each in results] == [
        "recovery of informative benchmarks under loglikelihood",
        "recovery of informative benchmarks under generation",
    ]

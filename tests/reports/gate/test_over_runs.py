"""Verdicts over training runs: where the spread between them is known, one run does not decide."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, run_gate
from evalsuite.reports.gate.verdict import Verdict
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def policy(rule: dict[str, Any], **more: Any) -> Policy:
    """A policy of one rule."""
    return parse({"rules": [rule], **more}, Policy, "policy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one recipe and one of another."""

    def student(label: str, truth: float, recipe: str, seed: int) -> Any:
        lineage = {"recipe": {"name": recipe}, "seed": seed, "mixers": ["gla"] * 4}
        return SyntheticCheckpoint(label, lambda b, p, c: truth, lineage=lineage)

    models = [
        SyntheticCheckpoint("t", lambda b, p, c: 0.8, "teacher"),
        student("a0", 0.55, "a", 0),
        student("a1", 0.70, "a", 1),
        student("b0", 0.55, "b", 0),
    ]
    benchmark = SyntheticBenchmark("f", "F", "knowledge", 800, protocols=("loglikelihood",))
    made: Path = make_run(tmp_path_factory.mktemp("runs") / "run", [benchmark], models)
    return made


RULES = ({"metric": "recovery", "min": 0.9}, {"metric": "drop", "max": 5})


@pytest.mark.parametrize("rule", RULES)
def test_runs_decide_where_a_recipe_has_them(run: Path, rule: dict[str, Any]) -> None:
    alone = run_gate([run], policy(rule, over="documents")).results
    assert [alone[0].outcome, alone[2].outcome] == ["regression"] * 2
    assert all(each.over == "the documents of one run" for each in alone)
    assert all(each.sentence.endswith("; over the documents of one run") for each in alone)
    # With one degree of freedom between two unequal runs nothing is proven.
    for over in ({}, {"over": "runs"}):
        recipe = run_gate([run], policy(rule | over)).results
        assert [each.outcome for each in recipe] == ["inconclusive"] * 3
        assert recipe[0].point == recipe[1].point == pytest.approx((alone[0].point + alone[1].point) / 2)
        assert recipe[2].point == alone[2].point
        assert recipe[0].over.startswith("documents and 2 training runs (")
        assert recipe[2].over.startswith("documents and training runs like this one (")
        assert "more training runs (other seeds) or more documents would decide it" in recipe[0].sentence
        assert recipe[0].documents_needed is None


def test_runs_of_one_recipe_are_one_test(run: Path) -> None:
    rule = {"metric": "drop", "max": 5}
    one = run_gate([run], policy(rule, checkpoints=["a0"])).results
    two = run_gate([run], policy(rule, checkpoints=["a0", "a1"])).results
    assert [each.p_worse for each in two] == [one[0].p_worse] * 2


def gate(run: Path, rule: dict[str, Any], **more: Any) -> Verdict:
    return run_gate([run], policy(rule, checkpoints=["b0"], **more))


def test_a_stated_spread_widens_the_interval_of_one_run(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("f", "F", "knowledge", 3000, protocols=("loglikelihood",))],
        {"t": 0.8, "b0": 0.745},
    )
    rule = {"metric": "recovery", "min": 0.9}
    documents, stated = gate(run, rule).results[0], gate(run, rule, run_spread=2.5).results[0]
    assert documents.outcome == "pass"
    assert documents.sentence.endswith("required at least 90.0 %; over the documents of one run")
    assert stated.outcome == "inconclusive"
    half = (documents.high - documents.low) / 2
    assert (stated.high - stated.low) / 2 == pytest.approx(
        (half**2 + (2.447 * 0.025 / 0.8) ** 2) ** 0.5, 0.05
    )
    assert "training runs like this one (2.5 points between runs)" in stated.sentence
    # Stated in the policy, `over: documents` still decides on the checkpoint itself.
    assert gate(run, rule | {"over": "documents"}, run_spread=2.5).results[0].outcome == "pass"
    verdict = gate(run, rule, over="runs")
    assert verdict.exit_code == 3
    assert "train another seed, state 'run_spread', or decide over documents" in verdict.results[0].why


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"run_spread": 0}, "'run_spread' = 0"),
        ({"run_spread": float("nan")}, "'run_spread' = nan"),
        ({"over": "seeds"}, "'over' = 'seeds'"),
    ],
)
def test_invalid_spreads_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy({"metric": "recovery", "min": 0.9}, **more)
    with pytest.raises(ConfigError, match="'over: runs' belongs to recovery"):
        policy({"metric": "gap", "max": 5, "over": "runs"})

"""The plan of a gate: its power and false alarms are those that the real decision has in simulations."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.api import plan_gate
from evalsuite.cli import main
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum
from evalsuite.reports.analysis.recovery import mean_drop, ratio_of
from evalsuite.reports.gate.decide import decide
from evalsuite.reports.rules.measurement import Measurement
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.contrasts import Contrast
from evalsuite.reports.statistics.power import (
    Level,
    Margin,
    PlannedStratum,
    Truth,
    decision_rates,
    documents_for_power,
    drop_margin,
    gap_margin,
    ratio_margin,
    retained_margin,
    score_margin,
)

RUN = Path(__file__).parents[1] / "fixtures" / "passing"
PAIRS, BATCHES = 80, 12


def policy(*rules: Any, **more: Any) -> Policy:
    """A policy of these rules."""
    return parse({"rules": list(rules), **more}, Policy, "policy")


def drop(data: BootstrapSample, first: int, second: int) -> Measurement:
    """A rule of drop, or of regression."""
    return Measurement(mean_drop(data, [second], first), data.documents, ())


def recovery(data: BootstrapSample, first: int, second: int) -> Measurement:
    """A rule of recovery."""
    ratio = ratio_of(data, [second], first)
    assert not isinstance(ratio, str)
    return Measurement(ratio.numerator, data.documents, (), ratio.denominator)


def score(data: BootstrapSample, _: int, second: int) -> Measurement:
    """A rule of score."""
    return Measurement(data.level_contrast(second), data.documents, ())


def simulated(
    sizes: Sequence[int],
    truth: Truth,
    measure: Callable[[BootstrapSample, int, int], Measurement],
    threshold: float,
    tests: int,
) -> tuple[float, float]:
    """Shares of pairs of checkpoints that the gate's own decision fails and passes, on new documents each."""
    met = Measurement(Contrast(1.0, np.full(4000, 1.0), 100.0, 1e-4), 10, ())
    thresholds, is_floor = [threshold] + [0.0] * (tests - 1), [measure is not drop] + [True] * (tests - 1)
    outcomes = []
    for batch in range(BATCHES):
        data = drawn(sizes, truth, batch)
        for pair in range(PAIRS):
            measured = [measure(data, pair, PAIRS + pair)] + [met] * (tests - 1)
            outcomes.append(decide(measured, thresholds, is_floor)[0].outcome)
    return outcomes.count("regression") / len(outcomes), outcomes.count("pass") / len(outcomes)


def drawn(sizes: Sequence[int], truth: Truth, batch: int) -> BootstrapSample:
    """Right and wrong answers of `PAIRS` first checkpoints, then of their second ones."""
    rng = np.random.default_rng([51, batch])
    strata = []
    for number, documents in enumerate(sizes):
        kinds = rng.choice(4, size=(documents, PAIRS), p=truth.shares)
        values = np.concatenate([np.isin(kinds, (0, 1)), np.isin(kinds, (0, 2))], axis=1).astype(float)
        names = tuple(f"checkpoint {i}" for i in range(2 * PAIRS))
        strata.append(ResampledStratum(Stratum(values, names, f"benchmark {number} batch {batch}")))
    return BootstrapSample(strata, [1.0] * len(sizes))


@pytest.mark.parametrize(
    ("sizes", "truth", "measure", "margin", "threshold", "tests"),
    [
        ([300], Truth(0.7, 0.15, 0.05), drop, drop_margin, 0.01, 6),
        ([120], Truth(0.9, 0.04, 0.03), drop, drop_margin, 0.0, 1),
        ([120], Truth(0.9, 0.04, 0.0), drop, drop_margin, 0.0, 1),
        ([100, 200, 300], Truth(0.6, 0.15, 0.08), drop, drop_margin, 0.03, 4),
        ([500], Truth(0.7, 0.2, 0.0), recovery, ratio_margin, 0.95, 2),
        ([150], Truth(0.8, 0.12, 0.0), score, score_margin, 0.75, 2),
    ],
    ids=["six tests", "few discordant", "nothing changed", "three benchmarks", "recovery", "score"],
)
def test_planned_rates_are_those_of_the_decision(
    sizes: list[int],
    truth: Truth,
    measure: Callable[[BootstrapSample, int, int], Measurement],
    margin: Callable[[Truth, float], Margin],
    threshold: float,
    tests: int,
) -> None:
    """Within 3 points, the target; the simulation of 960 pairs has a standard error of up to 1.6."""
    strata = [PlannedStratum(size, 1 / len(sizes), margin(truth, threshold)) for size in sizes]
    planned = decision_rates(strata, Level(0.025, 0.025 / tests))
    fails, passes = simulated(sizes, truth, measure, threshold, tests)
    assert (planned.fails, planned.passes) == pytest.approx((fails, passes), abs=0.03)


@pytest.mark.parametrize("margin", [drop_margin, gap_margin, ratio_margin, score_margin, retained_margin])
@pytest.mark.parametrize("tests", [1, 9])
def test_documents_for_power_give_the_power(margin: Callable[[Truth, float], Margin], tests: int) -> None:
    threshold = {drop_margin: 0.01, gap_margin: 0.02, ratio_margin: 0.96, score_margin: 0.7}.get(margin, 0.95)
    level, truth = Level(0.025, 0.025 / tests), Truth(0.7, 0.15, 0.08)
    needed = documents_for_power([PlannedStratum(100, 1.0, margin(truth, threshold))], level, 0.8)
    assert needed is not None
    planned = decision_rates([PlannedStratum(needed, 1.0, margin(truth, threshold))], level)
    assert 0.79 < planned.fails < 0.85


def test_margins_are_what_their_rules_demand() -> None:
    truth = Truth(0.6, 0.2, 0.1)
    assert sum(truth.shares) == pytest.approx(1)
    assert drop_margin(truth, 0.04).mean == pytest.approx(0.04 - 0.1)
    assert ratio_margin(truth, 0.9).mean == pytest.approx(0.5 - 0.9 * 0.6)
    assert score_margin(truth, 0.55).mean == pytest.approx(0.5 - 0.55)
    assert retained_margin(truth, 0.9).mean == pytest.approx(0.45 / 0.6 - 0.9)
    assert gap_margin(truth, 0.03).mean == pytest.approx(0.03 - 0.1)
    assert drop_margin(truth, 0.0).variance == pytest.approx(0.2 - 0.1**2)


def test_five_points_of_gsm8k_are_planned() -> None:
    """GSM8K's 1,319 documents show five points; a threshold that tolerates eight never does."""
    plan = plan_gate(policy({"metric": "drop", "max": 1, "protocol": "generation"}), documents=[1319])
    (rule,) = plan.rules
    assert (rule.lost.fails, rule.unchanged.fails) == pytest.approx((0.97, 0.002), abs=0.005)
    assert 600 < rule.documents_for_power < 800
    assert plan.warning is None
    wide = plan_gate(policy({"metric": "drop", "max": 8, "protocol": "generation"}), documents=[1319])
    assert wide.power < 0.001
    assert wide.rules[0].tolerates
    assert "every rule tolerates such a loss" in wide.warning
    assert "tolerated" in wide.text


def test_a_policy_with_little_power_is_named_in_one_sentence() -> None:
    plan = plan_gate(policy({"metric": "drop", "max": 1, "protocol": "generation"}), documents=[100])
    assert plan.warning.startswith(
        "This policy has less than an even chance to notice a loss of 5 points: it"
    )
    assert plan.warning.count(". ") == 0
    assert f"about {plan.rules[0].documents_for_power:,} documents would give 80 %." in plan.warning
    assert plan.text.endswith(plan.warning)


def test_documents_and_students_are_those_of_the_run() -> None:
    rules = [
        {"metric": "recovery", "min": 0.9},
        {"metric": "gap", "max": 5},
        {"metric": "score", "min": 0.9, "benchmark": "needle", "context": 256, "protocol": "generation"},
        {"metric": "kl", "max": 0.3},
        {"metric": "drop", "max": 1, "benchmark": "nothing"},
    ]
    plan = plan_gate(policy(*rules), runs=[RUN])
    assert [(rule.benchmarks, rule.documents) for rule in plan.rules] == [
        (1, 120), (2, 180), (1, 120), (1, 60), (1, 120), (0, 0),
    ]  # fmt: skip
    assert (plan.students, plan.tests) == (1, 6)
    assert [bool(rule.why) for rule in plan.rules] == [False] * 4 + [True] * 2
    assert "kl is decided when it is measured" in plan.text
    assert "drop of nothing at most 1.0 points: the runs have no benchmark" in plan.text
    only = plan_gate(policy(rules[0]), runs=[RUN], benchmarks=["needle"], checkpoints=["a", "b"])
    assert [(rule.documents, only.students) for rule in only.rules] == [(60, 2)]


def test_the_spread_between_runs_costs_power() -> None:
    rule = {"metric": "drop", "max": 1, "protocol": "generation"}
    one, many = (plan_gate(policy(rule, **more), documents=[2000]) for more in ({}, {"run_spread": 1.2}))
    assert many.power < one.power - 0.2
    alone = plan_gate(policy(rule, run_spread=1.2), documents=[2000], over="documents")
    assert alone.power == one.power


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": [1]}, "--documents 1: must be at least 2"),
        ({}, "either run folders or --documents"),
        ({"documents": [9], "runs": [RUN]}, "either run folders or --documents"),
        ({"documents": [9], "loss": 0.0}, "--loss 0: must be in points"),
        ({"documents": [9], "loss": float("nan")}, "--loss nan: must be in points"),
        ({"documents": [9], "churn": 15}, "--churn 15: must be a fraction, above 0 and at most 1: 0.15"),
        ({"documents": [9], "churn": 0.02}, "a loss of 5 points changes at least 5 % of the answers"),
        ({"documents": [9], "score": 0.99}, "a score of 99 % and a loss of 0 points exclude a churn of 15 %"),
        ({"documents": [9], "power": 0.4}, "--power 0.4: must be a fraction, above 0.5"),
    ],
)
def test_what_cannot_be_planned_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_gate(policy({"metric": "drop", "max": 1}), **given)
    assert message in str(caught.value)


def test_the_command_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text("rules: [{metric: drop, max: 1, protocol: generation}]")
    plan = ["gate", "--plan", str(path), "--documents", "100"]
    assert main(plan) == 0
    assert "less than an even chance" in capsys.readouterr().out
    assert main([*plan, "--json", "--loss", "20", "--churn", "0.3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["assumptions"] == {"loss": 20.0, "churn": 0.3, "score": 0.7, "power": 0.8}
    assert printed["power"] > 0.8
    assert printed["warning"] is None
    for wrong, message in (
        ([*plan, "--min-recovery", "0.9"], "--min-recovery has no effect on --plan"),
        ([*plan, "--out", "there"], "--out has no effect on --plan"),
        (["gate", str(RUN), "--min-recovery", "0.9", "--loss", "3"], "--loss plans a policy: pass --plan"),
    ):
        assert main(wrong) >= 64
        assert message in capsys.readouterr().err


def test_the_verdict_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", str(RUN), "--min-recovery", "0.9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "pass"

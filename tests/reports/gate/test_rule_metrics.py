"""Metrics of rules: agreement and retained against the report, and a metric that a test registers."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, policy_from_options, run_gate
from evalsuite.reports.gate.policy import options
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures import rule_metrics
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.measures.recovery import drop
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.rules.measurement import Measurement
from evalsuite.reports.rules.metric import RuleMetric
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def policy(*rules: dict[str, Any]) -> Policy:
    """A policy of these rules."""
    return parse({"rules": list(rules)}, Policy, "policy")


@pytest.fixture(scope="module")
def report(small_run: Path) -> Report:
    return build_report([small_run])


@pytest.mark.parametrize("metric", ["agreement", "retained"])
@pytest.mark.parametrize("category", [None, "recall"])
def test_flips_are_those_of_the_report(
    small_run: Path, report: Report, metric: str, category: str | None
) -> None:
    rule = {"metric": metric, "min": 0.9, "protocol": "generation"}
    verdict = run_gate([small_run], policy(rule | ({"category": category} if category else {})))
    for result in verdict.results:
        checkpoint = next(i for i, each in enumerate(report.checkpoints) if each.label == result.checkpoint)
        row = agreement_with_teacher(report, checkpoint, "generation", category or "all")
        interval = getattr(row, metric).interval
        assert (result.point, result.low, result.high) == (interval.point, interval.low, interval.high)
        assert result.at_least
        assert result.sentence.startswith(f"{100 * interval.point:.1f} % (")
    weak = next(result for result in verdict.results if result.checkpoint == "weak")
    assert weak.outcome == "regression"
    assert verdict.exit_code == 1


@pytest.fixture(scope="module")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose teacher knows `facts` and guesses on `riddles`."""
    scores = {"facts": (0.8, 0.7), "riddles": (0.25, 0.5)}
    return make_run(
        tmp_path_factory.mktemp("run"),
        [SyntheticBenchmark(name, name, "knowledge", 300) for name in scores],
        [
            SyntheticCheckpoint("teacher", lambda name, p, c: scores[name][0], "teacher"),
            SyntheticCheckpoint("student", lambda name, p, c: scores[name][1]),
        ],
    )


@pytest.fixture(scope="module")
def guessed(guessing: Path) -> Report:
    return build_report([guessing])


@pytest.mark.parametrize(
    "metric",
    ["recovery", "capped_recovery", "chance_normalized_recovery", "score", "drop", "agreement", "retained"],
)
@pytest.mark.parametrize("scope", ["all", "informative"])
def test_a_scope_is_that_of_the_report(guessing: Path, guessed: Report, metric: str, scope: str) -> None:
    bound = {rule_metrics()[metric].bound: 0.5}
    rule = {"metric": metric, "scope": scope, "protocol": "loglikelihood", **bound}
    (result,) = run_gate([guessing], policy(rule)).results
    average = guessed.average(1, "loglikelihood", scope)
    row = agreement_with_teacher(guessed, 1, "loglikelihood", scope)
    assert average.benchmarks == (("facts",) if scope == "informative" else ("facts", "riddles"))
    expected = getattr(row if metric in ("agreement", "retained") else average, metric)
    point = expected.point * (100 if metric == "drop" else 1)
    assert result.point == pytest.approx(point, abs=1e-12)
    assert metric == "retained" or result.documents == average.documents
    what = "informative benchmarks" if scope == "informative" else "average"
    assert result.name == f"{metric.replace('_', ' ')} of {what} under loglikelihood"


def test_guesses_do_not_hide_a_loss_from_the_informative_scope(guessing: Path) -> None:
    rules = [
        {"metric": "recovery", "min": 0.95, "protocol": "loglikelihood", "scope": scope}
        for scope in ("all", "informative")
    ]
    assert [each.outcome for each in run_gate([guessing], policy(*rules)).results] == ["pass", "regression"]


def test_without_an_informative_benchmark_nothing_is_measured(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("riddles", "Riddles", "knowledge", 200)],
        {"teacher": 0.24, "student": 0.26},
    )
    for metric in ("capped_recovery", "agreement"):
        verdict = run_gate([run], policy({"metric": metric, "min": 0.9, "scope": "informative"}))
        assert verdict.exit_code == 3
        why = "no benchmark is informative under log-likelihood: riddles: the teacher is not above chance"
        assert verdict.results[0].why.startswith(why)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"metric": "gap", "max": 5}, "'scope: informative' belongs to .*recovery, capped_recovery"),
        ({"metric": "recovery", "min": 0.9, "benchmark": "x"}, "leave 'benchmark' and 'category' out"),
        ({"metric": "recovery", "min": 0.9, "category": "recall"}, "leave 'benchmark' and 'category' out"),
        ({"metric": "recovery", "min": 0.9, "scope": "informativ"}, "informative"),
        ({"metric": "capped_recovery", "min": 0.9, "over": "runs"}, "'over: runs' belongs to"),
    ],
)
def test_a_scope_that_cannot_be_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy({"scope": "informative"} | rule)


def test_agreement_of_one_benchmark_passes_and_names_documents_when_it_fails(small_run: Path) -> None:
    rules = [
        {"metric": "agreement", "min": low, "benchmark": "arc_easy", "protocol": "loglikelihood"}
        for low in (0.2, 0.99)
    ]
    verdict = run_gate([small_run], policy(*rules))
    assert [result.outcome for result in verdict.results] == ["pass", "pass", "regression", "regression"]
    assert all(name.startswith("arc_easy/") for name in verdict.results[2].look_at)


def test_what_has_no_answers_is_not_measured(small_run: Path, tmp_path: Path) -> None:
    verdict = run_gate(
        [small_run], policy({"metric": "agreement", "min": 0.5, "category": "language_modeling"})
    )
    assert verdict.exit_code == 3
    teacher = run_gate(
        [small_run],
        parse({"rules": [{"metric": "retained", "min": 0.5}], "checkpoints": ["teacher"]}, Policy, "p"),
    )
    assert teacher.exit_code == 3
    assert "no teacher to compare with" in teacher.results[0].why


def test_a_registered_metric_is_a_rule_and_an_option(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_drop(evidence: Any, rule: Any, protocol: str | None, checkpoint: int) -> Any:
        found = drop(evidence, rule, protocol, checkpoint)
        if not isinstance(found, Measurement):
            return found
        return Measurement(found.contrast.scaled(0.5), found.documents, found.look_at)

    metric = RuleMetric(measure=half_drop, bound="max", unit="points", hint="half the drop", has_option=True)
    monkeypatch.setitem(MEASURES._items, "half_drop", Measure(metrics={"half_drop": metric}))
    whole = run_gate([small_run], policy({"metric": "drop", "max": 1}))
    half = run_gate([small_run], policy_from_options(max_half_drop=1))
    assert [each.point for each in half.results] == [each.point / 2 for each in whole.results]
    assert half.results[0].name == "half drop of average under loglikelihood"
    with pytest.raises(ConfigError, match="--max-half-drop 101: must be in points, -100 to 100"):
        policy_from_options(max_half_drop=101)


def test_options_are_those_of_the_metrics() -> None:
    assert set(options()) >= {"min_recovery", "min_agreement", "min_retained", "max_gap"}
    with pytest.raises(
        ConfigError, match="unknown option 'min_agrement' of a gate; did you mean 'min_agreement'"
    ):
        policy_from_options(min_agrement=0.5)
    with pytest.raises(
        ConfigError, match=r"--min-retained 81: must be a fraction, 0 to 1\.5: 0\.95 means 95 %"
    ):
        policy_from_options(min_retained=81.0)
    with pytest.raises(ConfigError, match="unknown metric; did you mean 'retained'"):
        policy({"metric": "retaind", "min": 0.5})


@pytest.mark.parametrize("name", rule_metrics())
def test_metrics_refuse_nan_and_the_other_bound(name: str) -> None:
    kind = rule_metrics()[name]
    extra = {"baseline": "x"} if kind.needs_baseline else {}
    with pytest.raises(ConfigError, match=rf"'rules\.0\.{kind.bound}' = nan"):
        policy({"metric": name, kind.bound: float("nan"), **extra})
    with pytest.raises(ConfigError, match=f"takes '{kind.bound}', and only that"):
        policy({"metric": name, "max" if kind.bound == "min" else "min": 0.5, **extra})

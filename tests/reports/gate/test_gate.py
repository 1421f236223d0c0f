"""The gate: decisions on intervals, and missing evidence that never passes."""

import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from evalsuite.foundation import ConfigError, read_json, write_json
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, load_policy, policy_from_options, run_gate
from evalsuite.reports.gate.decide import decide
from evalsuite.reports.rules.measurement import Measurement
from evalsuite.reports.run import read_manifest
from evalsuite.reports.statistics.contrasts import Contrast
from tests.reports.conftest import SyntheticBenchmark, make_run
from tests.reports.score_edits import all_rows, edit_rows

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXAMPLES = Path(__file__).parents[3] / "reports" / "examples"


def policy(*rules: dict[str, Any], **more: Any) -> Policy:
    """A policy of these rules."""
    return parse({"rules": list(rules), **more}, Policy, "policy")


@pytest.fixture(autouse=True)
def _no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.mark.parametrize(("name", "code"), [("passing", 0), ("failing", 1), ("abstaining", 2)])
def test_fixture_runs_pass_fail_and_are_inconclusive(name: str, code: int) -> None:
    verdict = run_gate([FIXTURES / name], policy_from_options(min_recovery=0.9, max_gap=10))
    assert verdict.exit_code == code


def test_regression_reports_miss_p_value_and_documents() -> None:
    verdict = run_gate([FIXTURES / "failing"], policy_from_options(min_recovery=0.9))
    result = next(d for d in verdict.results if d.protocol == "generation")
    assert result.outcome == "regression"
    assert result.sentence.startswith("22.7 % (")
    assert "), required at least 90.0 %: misses it by 67.3 points, proven (p < 0.001" in result.sentence
    assert 0.15 < result.low < 0.227 < result.high < 0.32
    assert result.p_worse < 0.001
    assert {name.split("/")[0] for name in result.look_at} == {"facts", "needle"}
    assert "look at" in verdict.text


def test_inconclusive_rule_reports_documents_needed() -> None:
    verdict = run_gate([FIXTURES / "abstaining"], policy_from_options(min_recovery=0.9))
    result = next(d for d in verdict.results if d.outcome == "inconclusive")
    assert result.documents_needed > result.documents
    assert f"about {result.documents_needed:,} would decide it" in result.sentence
    tolerant = run_gate(
        [FIXTURES / "abstaining"], policy({"metric": "recovery", "min": 0.9}, inconclusive="tolerate")
    )
    assert tolerant.exit_code == 0
    assert "2 inconclusive, tolerated" in tolerant.text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            {"metric": "recovery", "min": 0.9, "benchmark": "fatcs"},
            "'fatcs'; did you mean 'facts'",
        ),
        ({"metric": "recovery", "min": 0.9, "category": "reasoning"}, "no benchmark of category 'reasoning'"),
        (
            {"metric": "score", "min": 0.5, "benchmark": "needle", "context": 999, "protocol": "generation"},
            "no 'needle' at 999 tokens",
        ),
        (
            {"metric": "score", "min": 0.5, "benchmark": "needle", "protocol": "loglikelihood"},
            "no 'needle' with a score under log-likelihood",
        ),
        ({"metric": "gap", "max": 5, "benchmark": "needle"}, "not evaluated under both protocols"),
        (
            {"metric": "regression", "max": 1, "baseline": "/nowhere", "protocol": "generation"},
            "the baseline cannot be read",
        ),
    ],
)
def test_missing_evidence_exits_with_3(line: dict[str, Any], why: str) -> None:
    verdict = run_gate([FIXTURES / "passing"], policy(line))
    assert verdict.exit_code == 3
    assert why in verdict.results[0].sentence


def copy_without(run: Path, to: Path, unwanted: Any) -> Path:
    """Copy a run without the score rows for which `unwanted` is true."""
    shutil.copytree(run, to)
    for benchmark, protocol in read_manifest(to).cells():
        edit_rows(to, benchmark.name, protocol, lambda _, row: None if unwanted(row) else row)
    return to


def test_planned_benchmark_without_scores_exits_with_3(tmp_path: Path) -> None:
    run = copy_without(FIXTURES / "passing", tmp_path / "run", lambda row: row["benchmark"] == "needle")
    verdict = run_gate([run], policy({"metric": "recovery", "min": 0.9, "protocol": "generation"}))
    assert verdict.exit_code == 3
    assert "needle at 256 tokens: 'student' has 0 of 60 documents" in verdict.results[0].why


def test_missing_teacher_exits_with_3(tmp_path: Path) -> None:
    run = copy_without(FIXTURES / "passing", tmp_path / "run", lambda row: row["checkpoint"] == "teacher")
    assert run_gate([run], policy_from_options(min_recovery=0.9)).exit_code == 3
    plan = read_json(run / "run.json")
    plan["checkpoints"] = [c for c in plan["checkpoints"] if c["role"] == "student"]
    write_json(run / "run.json", plan)
    verdict = run_gate([run], policy_from_options(min_recovery=0.9))
    assert verdict.exit_code == 3
    assert "no teacher" in verdict.results[0].why


def test_run_without_students_exits_with_3(tmp_path: Path) -> None:
    run = copy_without(FIXTURES / "passing", tmp_path / "run", lambda row: row["checkpoint"] == "student")
    plan = read_json(run / "run.json")
    plan["checkpoints"] = [c for c in plan["checkpoints"] if c["role"] == "teacher"]
    write_json(run / "run.json", plan)
    assert run_gate([run], policy_from_options(min_recovery=0.9)).exit_code == 3


def test_chance_normalized_recovery_of_teacher_at_chance_is_not_measured(tmp_path: Path) -> None:
    answerers = {"t": 0.26, "s": 0.26}
    run = make_run(tmp_path, [SyntheticBenchmark("f", "F", "knowledge", 150)], answerers)
    verdict = run_gate([run], policy({"metric": "chance_normalized_recovery", "min": 0.9}))
    assert verdict.exit_code == 3
    assert "lead over chance" in verdict.results[0].why or "not above chance" in verdict.results[0].why


def test_regression_against_baseline_run(tmp_path: Path) -> None:
    rules = [
        {"metric": "regression", "max": 5, "baseline": str(FIXTURES / "passing"), "protocol": protocol}
        for protocol in ("loglikelihood", "generation")
    ]
    same = run_gate([FIXTURES / "passing"], policy(*rules))
    assert same.exit_code == 0
    assert all(d.point == 0 and d.low < 0 < d.high for d in same.results)
    # The fixtures have different weights under the same label, and the same documents.
    worse = run_gate([FIXTURES / "failing"], policy(*rules))
    assert worse.exit_code == 1
    assert all(d.look_at for d in worse.results)
    stranger = policy(rules[0] | {"baseline_checkpoint": "stduent"})
    verdict = run_gate([FIXTURES / "failing"], stranger)
    assert verdict.exit_code == 3
    assert "did you mean 'student'" in verdict.results[0].why


def test_proven_regression_outranks_unmeasured_rules() -> None:
    verdict = run_gate(
        [FIXTURES / "failing"],
        policy(
            {"metric": "recovery", "min": 0.9}, {"metric": "recovery", "min": 0.9, "category": "reasoning"}
        ),
    )
    assert {d.outcome for d in verdict.results} == {"regression", "unmeasured"}
    assert verdict.exit_code == 1


def test_output_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setitem(os.environ, "GITHUB_STEP_SUMMARY", str(summary))
    rules = [
        {"metric": "recovery", "min": 0.9, "name": "a <b>name</b> | with \x0b bad characters"},
        {"metric": "score", "min": 0.2, "benchmark": "facts", "protocol": "loglikelihood"},
        {"metric": "gap", "max": 5, "benchmark": "nothing"},
    ]
    verdict = run_gate([FIXTURES / "failing"], policy(*rules), out=tmp_path / "gate")
    suite = ET.parse(tmp_path / "gate" / "junit.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "1")
    failures = suite.findall("testcase/failure")
    assert all("misses it by" in failure.get("message") for failure in failures)
    assert all("facts/" in failure.text for failure in failures)
    text = (tmp_path / "gate" / "gate.md").read_text()
    assert "a &lt;b&gt;name&lt;/b&gt; \\| with" in text
    assert summary.read_text() == text
    generated = json.loads((tmp_path / "gate" / "gate.json").read_text())
    assert (generated["exit_code"], len(generated["results"])) == (1, 4)
    assert verdict.sentence.startswith("1 pass, 2 proven regression")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{metric: recovry, min: 0.9}]", "unknown metric; did you mean 'recovery'"),
        ("rules: [{metric: recovery, min: .nan}]", "'rules.0.min' = nan"),
        ("rules: [{metric: recovery, min: 95}]", "0.95 means 95 %"),
        ("rules: [{metric: recovery, max: 0.9}]", "recovery takes 'min', and only that"),
        ("rules: [{metric: gap, min: 3}]", "gap takes 'max', and only that"),
        ("rules: [{metric: gap, max: 3, protocol: generation}]", "leave 'protocol' out"),
        ("rules: [{metric: regression, max: 3}]", "regression needs it"),
        ("rules: [{metric: score, min: 0.5, context: 512}]", "'context' needs a 'benchmark'"),
        ("rules: [{metric: recovery, min: 0.9, benchmrak: x}]", "did you mean 'benchmark'"),
        ("rules: []", "'rules'"),
        ("rules: [{metric: recovery, min: yes}]", "'rules.0.min' = True: expected a number"),
        ("rules: [recovery >= 0.9]\nrun_spread: on", "'run_spread' = True: expected a number"),
        ("schema: 1\nrules: [{metric: gap, max: 3}]", "'schema' = 1"),
        ("rules: [{metric: recovery, min: 0.9}]\nconfidence: 2", "'confidence' = 2"),
    ],
)
def test_invalid_policy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"gate\.yaml") as caught:
        load_policy(path)
    assert message in str(caught.value)


def test_invalid_options_are_refused() -> None:
    for option, value in (
        *(("min_recovery", value) for value in (float("nan"), float("inf"), -1, 90)),
        ("max_gap", float("nan")),
        ("max_gap", -101),
        ("max_kl", -1),
    ):
        flag = f"--{option.replace('_', '-')} {value:g}"
        with pytest.raises(ConfigError, match=f"^{flag}: must be ") as caught:
            policy_from_options(**{option: value})
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"a gate needs .*--min-recovery"):
        policy_from_options()


def test_unknown_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'student'"):
        run_gate([FIXTURES / "passing"], policy({"metric": "recovery", "min": 0.9}, checkpoints=["studnet"]))


def test_example_policy_is_valid() -> None:
    shipped = load_policy(EXAMPLES / "gate.yaml")
    assert {line.metric for line in shipped.rules} == {
        "recovery",
        "chance_normalized_recovery",
        "gap",
        "score",
    }


def test_baseline_is_relative_to_policy(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("rules: [{metric: regression, max: 1, baseline: stored/run}]")
    assert load_policy(tmp_path / "gate.yaml").rules[0].baseline == str(tmp_path / "stored" / "run")


def simulated_measurements(
    rng: np.random.Generator, truth: float, rules: int, deviation: float
) -> list[Measurement]:
    """Measurements with normal estimates around the truth, and draws like those of a bootstrap."""
    points = truth + deviation * rng.standard_normal(rules)
    draws = deviation * rng.standard_normal((rules, 4000))
    return [
        Measurement(Contrast(float(p), p + each, 1e9, deviation**2), 1000, ())
        for p, each in zip(points, draws, strict=True)
    ]


def test_an_interval_that_touches_its_threshold_passes() -> None:
    exact = Measurement(Contrast(0.9, np.full(4000, 0.9), 1e9, 0.0), 1000, ())
    assert [each.outcome for each in decide([exact, exact], [0.9, 0.9], [True, False])] == ["pass", "pass"]


def test_a_gap_names_documents_that_generation_alone_has_wrong(small_run: Path) -> None:
    verdict = run_gate([small_run], policy({"metric": "gap", "max": 1, "benchmark": "arc_easy"}))
    (result,) = (each for each in verdict.results if each.checkpoint == "weak")
    scores = {
        protocol: {
            f"arc_easy/{row['doc_id']}": row["values"]["acc"]
            for row in all_rows(small_run, "arc_easy", protocol)
            if row["checkpoint"] == "weak"
        }
        for protocol in ("loglikelihood", "generation")
    }
    assert result.outcome == "regression"
    assert {(scores["loglikelihood"][d], scores["generation"][d]) for d in result.look_at} == {(1.0, 0.0)}


@pytest.mark.long
def test_false_alarm_rate_and_power() -> None:
    """Ten rules on their threshold alarm in at most 5 % of gates; one at its MDE fails in 80 %."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(600):
        rules = simulated_measurements(rng, 0.9, 10, 0.01)
        alarms += any(r.outcome == "regression" for r in decide(rules, [0.9] * 10, [True] * 10))
    assert alarms / 600 <= 0.05
    effect = (norm.ppf(0.975) + norm.ppf(0.8)) * 0.01
    caught = 0
    for _ in range(600):
        found = decide(simulated_measurements(rng, 0.9 - effect, 1, 0.01), [0.9], [True])[0]
        caught += found.outcome == "regression"
        assert found.mde == pytest.approx(effect, rel=0.1)
    assert 0.75 <= caught / 600 <= 0.85

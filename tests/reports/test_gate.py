"""The gate: it passes, fails and abstains on intervals, and what it cannot measure never passes."""

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, gate, load_policy, policy_from_options
from evalsuite.reports.gating.decide import rule
from evalsuite.reports.gating.measure import Measured
from evalsuite.reports.statistics.power import minimum_detectable_effect

FIXTURES = Path(__file__).parent / "fixtures"
EXAMPLES = Path(__file__).parents[2] / "reports" / "examples"


def policy(*lines: dict[str, Any], **more: Any) -> Policy:
    """A policy of these lines."""
    return parse({"lines": list(lines), **more}, Policy, "policy")


@pytest.fixture(autouse=True)
def _no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.mark.parametrize(("name", "code"), [("passing", 0), ("failing", 1), ("abstaining", 2)])
def test_the_stored_runs_pass_fail_and_abstain(name: str, code: int) -> None:
    verdict = gate([FIXTURES / name], policy_from_options(min_recovery=0.9, max_gap=10))
    assert verdict.exit_code == code


def test_a_failing_line_says_what_by_how_much_how_sure_and_where_to_look() -> None:
    verdict = gate([FIXTURES / "failing"], policy_from_options(min_recovery=0.9))
    line = next(d for d in verdict.decisions if d.protocol == "generation")
    assert line.outcome == "regression"
    assert line.sentence.startswith("22.7 % (")
    assert ", at least 90.0 % demanded: misses it by 67.3 points, proven (p < 0.001" in line.sentence
    assert 0.15 < line.low < 0.227 < line.high < 0.32
    assert line.p_worse < 0.001
    assert {name.split("/")[0] for name in line.look_at} == {"facts", "needle"}
    assert "look at" in verdict.text


def test_an_undecided_line_says_how_many_documents_would_decide_it() -> None:
    verdict = gate([FIXTURES / "abstaining"], policy_from_options(min_recovery=0.9))
    line = next(d for d in verdict.decisions if d.outcome == "inconclusive")
    assert line.documents_needed > line.documents
    assert f"about {line.documents_needed:,} would decide it" in line.sentence
    tolerant = gate(
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
            "no 'needle' with a score under loglikelihood",
        ),
        ({"metric": "gap", "max": 5, "benchmark": "needle"}, "not asked under both protocols"),
        (
            {"metric": "regression", "max": 1, "baseline": "/nowhere", "protocol": "generation"},
            "the baseline cannot be read",
        ),
    ],
)
def test_what_is_missing_ends_in_3_and_never_in_0(line: dict[str, Any], why: str) -> None:
    verdict = gate([FIXTURES / "passing"], policy(line))
    assert verdict.exit_code == 3
    assert why in verdict.decisions[0].sentence


def copy_without(run: Path, to: Path, unwanted: Any) -> Path:
    """A copy of a run whose records for which `unwanted` is true are gone."""
    (to / "records").mkdir(parents=True)
    (to / "plan.yaml").write_text((run / "plan.yaml").read_text())
    for journal in (run / "records").iterdir():
        kept = [line for line in journal.read_text().splitlines(True) if not unwanted(json.loads(line))]
        (to / "records" / journal.name).write_text("".join(kept))
    return to


def test_a_benchmark_that_the_plan_asks_and_nobody_answered_ends_in_3(tmp_path: Path) -> None:
    run = copy_without(FIXTURES / "passing", tmp_path / "run", lambda row: row["benchmark"] == "needle")
    verdict = gate([run], policy({"metric": "recovery", "min": 0.9, "protocol": "generation"}))
    assert verdict.exit_code == 3
    assert "needle at 256 tokens: asked by the plan" in verdict.decisions[0].why


def test_an_absent_teacher_ends_in_3(tmp_path: Path) -> None:
    run = copy_without(FIXTURES / "passing", tmp_path / "run", lambda row: row["checkpoint"] == "teacher")
    assert gate([run], policy_from_options(min_recovery=0.9)).exit_code == 3
    plan = yaml.safe_load((run / "plan.yaml").read_text())
    plan["checkpoints"] = [c for c in plan["checkpoints"] if c["role"] == "student"]
    (run / "plan.yaml").write_text(yaml.safe_dump(plan))
    verdict = gate([run], policy_from_options(min_recovery=0.9))
    assert verdict.exit_code == 3
    assert "no teacher" in verdict.decisions[0].why


def test_a_run_without_students_ends_in_3(tmp_path: Path) -> None:
    run = copy_without(FIXTURES / "passing", tmp_path / "run", lambda row: row["checkpoint"] == "student")
    plan = yaml.safe_load((run / "plan.yaml").read_text())
    plan["checkpoints"] = [c for c in plan["checkpoints"] if c["role"] == "teacher"]
    (run / "plan.yaml").write_text(yaml.safe_dump(plan))
    assert gate([run], policy_from_options(min_recovery=0.9)).exit_code == 3


def test_recovery_where_the_teacher_is_at_chance_is_not_measured(
    dice: SimpleNamespace, tmp_path: Path
) -> None:
    answerers = [
        dice.Answerer("t", lambda b, p, c: 0.26, "teacher"),
        dice.Answerer("s", lambda b, p, c: 0.26),
    ]
    run = dice.make_run(tmp_path, [dice.Asked("f", "F", "knowledge", 150)], answerers)
    verdict = gate([run], policy({"metric": "centred_recovery", "min": 0.9}))
    assert verdict.exit_code == 3
    assert "not above chance" in verdict.decisions[0].why


def test_a_regression_beside_a_stored_run(tmp_path: Path) -> None:
    lines = [
        {"metric": "regression", "max": 5, "baseline": str(FIXTURES / "passing"), "protocol": protocol}
        for protocol in ("loglikelihood", "generation")
    ]
    same = gate([FIXTURES / "passing"], policy(*lines))
    assert same.exit_code == 0
    assert all(d.point == 0 and d.low < 0 < d.high for d in same.decisions)
    # The fixtures hold other weights under the same label, answering the same documents.
    worse = gate([FIXTURES / "failing"], policy(*lines))
    assert worse.exit_code == 1
    assert all(d.look_at for d in worse.decisions)
    stranger = policy(lines[0] | {"baseline_checkpoint": "stduent"})
    verdict = gate([FIXTURES / "failing"], stranger)
    assert verdict.exit_code == 3
    assert "did you mean 'student'" in verdict.decisions[0].why


def test_a_proven_regression_outweighs_what_could_not_be_measured() -> None:
    verdict = gate(
        [FIXTURES / "failing"],
        policy(
            {"metric": "recovery", "min": 0.9}, {"metric": "recovery", "min": 0.9, "category": "reasoning"}
        ),
    )
    assert {d.outcome for d in verdict.decisions} == {"regression", "unmeasured"}
    assert verdict.exit_code == 1


def test_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setitem(os.environ, "GITHUB_STEP_SUMMARY", str(summary))
    lines = [
        {"metric": "recovery", "min": 0.9, "name": "a <b>name</b> | with \x0b bad characters"},
        {"metric": "score", "min": 0.2, "benchmark": "facts", "protocol": "loglikelihood"},
        {"metric": "gap", "max": 5, "benchmark": "nothing"},
    ]
    verdict = gate([FIXTURES / "failing"], policy(*lines), out=tmp_path / "gate")
    suite = ET.parse(tmp_path / "gate" / "junit.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "1")
    failures = suite.findall("testcase/failure")
    assert all("misses it by" in failure.get("message") for failure in failures)
    assert all("facts/" in failure.text for failure in failures)
    text = (tmp_path / "gate" / "gate.md").read_text()
    assert "a &lt;b&gt;name&lt;/b&gt; \\| with" in text
    assert summary.read_text() == text
    written = json.loads((tmp_path / "gate" / "gate.json").read_text())
    assert (written["exit_code"], len(written["decisions"])) == (1, 4)
    assert verdict.sentence.startswith("1 pass, 2 proven regression")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lines: [{metric: recovry, min: 0.9}]", "unknown metric; did you mean 'recovery'"),
        ("lines: [{metric: recovery, min: .nan}]", "'lines.0.min' = nan"),
        ("lines: [{metric: recovery, min: 95}]", "0.95 means 95 %"),
        ("lines: [{metric: recovery, max: 0.9}]", "recovery takes 'min', and only that"),
        ("lines: [{metric: gap, min: 3}]", "gap takes 'max', and only that"),
        ("lines: [{metric: gap, max: 3, protocol: generation}]", "leave 'protocol' out"),
        ("lines: [{metric: regression, max: 3}]", "regression needs it"),
        ("lines: [{metric: score, min: 0.5, context: 512}]", "'context' needs a 'benchmark'"),
        ("lines: [{metric: recovery, min: 0.9, benchmrak: x}]", "did you mean 'benchmark'"),
        ("lines: []", "'lines'"),
        ("lines: [{metric: recovery, min: 0.9}]\nconfidence: 2", "'confidence' = 2"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"gate\.yaml") as caught:
        load_policy(path)
    assert message in str(caught.value)


def test_options_that_mean_nothing_are_refused() -> None:
    for options in ({}, {"min_recovery": float("nan")}, {"min_recovery": 90.0}, {"max_gap": float("inf")}):
        with pytest.raises(ConfigError):
            policy_from_options(**options)


def test_a_checkpoint_that_no_run_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'student'"):
        gate([FIXTURES / "passing"], policy({"metric": "recovery", "min": 0.9}, checkpoints=["studnet"]))


def test_the_shipped_policy_and_workflow_are_whole(tmp_path: Path) -> None:
    shipped = load_policy(EXAMPLES / "gate.yaml")
    assert {line.metric for line in shipped.lines} == {"recovery", "centred_recovery", "gap", "score"}
    workflow = yaml.safe_load((EXAMPLES / "evalsuite-gate.yml").read_text())
    commands = [step.get("run", "") for step in workflow["jobs"]["gate"]["steps"]]
    assert any(command.startswith("evalsuite gate run --policy") for command in commands)


def test_a_baseline_is_found_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("lines: [{metric: regression, max: 1, baseline: stored/run}]")
    assert load_policy(tmp_path / "gate.yaml").lines[0].baseline == str(tmp_path / "stored" / "run")


def measured_lines(rng: np.random.Generator, truth: float, lines: int, deviation: float) -> list[Measured]:
    """Lines whose estimate is normal about the truth, with draws as a bootstrap would make them."""
    points = truth + deviation * rng.standard_normal(lines)
    return [Measured(p, p + deviation * rng.standard_normal(4000), 1000, ()) for p in points]


def test_false_alarms_and_power_of_the_rule() -> None:
    """Ten lines on their threshold alarm in at most 5 % of gates; one at its detectable effect in 80 %."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(600):
        lines = measured_lines(rng, 0.9, 10, 0.01)
        alarms += any(r.outcome == "regression" for r in rule(lines, [0.9] * 10, [True] * 10))
    assert alarms / 600 <= 0.05
    effect = minimum_detectable_effect(0.01)
    caught = 0
    for _ in range(600):
        found = rule(measured_lines(rng, 0.9 - effect, 1, 0.01), [0.9], [True])[0]
        caught += found.outcome == "regression"
        assert found.detectable == pytest.approx(effect, rel=0.1)
    assert 0.75 <= caught / 600 <= 0.85

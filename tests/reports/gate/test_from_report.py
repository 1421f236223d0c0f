"""The gate on a report: the verdict of its runs where intervals decide it, and no pass elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evalsuite.api import GateConfig, gate
from evalsuite.cli import main
from evalsuite.foundation import DataError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, compare, run_gate
from evalsuite.reports.exports.compact_json import compact_json
from evalsuite.reports.exports.report_json import report_json
from evalsuite.reports.gate.from_report import gate_report
from evalsuite.reports.report import Report, build_report

FIXTURES = Path(__file__).parents[1] / "fixtures"
RULES: list[Any] = [
    "recovery >= 0.9",
    {"metric": "recovery", "min": 0.8, "scope": "all"},
    "chance_normalized_recovery >= 0.85",
    "drop <= 8",
    "drop within 3",
    "gap <= 10",
    {"metric": "score", "min": 0.6, "protocol": "generation"},
    {"metric": "retained", "min": 0.85},
]


def policy(*rules: Any, **more: Any) -> Policy:
    """A policy of these rules."""
    return parse({"rules": list(rules), **more}, Policy, "policy")


def written(report: Report, folder: Path) -> Path:
    """The folder with the report.json alone, as `compare` writes it."""
    folder.mkdir(exist_ok=True)
    (folder / "report.json").write_text(compact_json(report_json(report)))
    return folder


@pytest.fixture(scope="module")
def abstaining(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with few documents."""
    return written(build_report([FIXTURES / "abstaining"]), tmp_path_factory.mktemp("abstaining"))


@pytest.mark.parametrize("name", ["passing", "failing", "abstaining"])
def test_the_verdict_is_that_of_the_run(name: str, tmp_path: Path) -> None:
    written(build_report([FIXTURES / name]), tmp_path)
    of_report = gate_report(tmp_path / "report.json", policy(*RULES))
    of_run = run_gate([FIXTURES / name], policy(*RULES))
    assert of_report.exit_code == of_run.exit_code
    for mine, theirs in zip(of_report.results, of_run.results, strict=True):
        assert (mine.name, mine.outcome) == (theirs.name, theirs.outcome)
        assert (mine.point, mine.low, mine.high) == pytest.approx(
            (theirs.point, theirs.low, theirs.high), abs=0.15 if theirs.unit == "points" else 0.0015
        )


@pytest.mark.parametrize("name", ["passing", "failing", "abstaining"])
def test_the_policy_of_a_report_has_the_verdict_of_its_page(name: str, tmp_path: Path) -> None:
    # Intervals of a report do not decide the second policy; the documents of the run did.
    for number, given in enumerate((policy(*RULES), policy("recovery >= 0.5", errors="exclude"))):
        made = compare([FIXTURES / name], tmp_path / str(number), policy=given, samples=False)
        renamed = given.model_copy(update={"name": "other.yaml"})
        held = gate_report(tmp_path / str(number) / "report.json", renamed, out=tmp_path / "gate")
        assert made.verdict is not None
        assert held.exit_code == made.verdict.exit_code
        assert held.by_checkpoint == made.verdict.by_checkpoint
        assert [each.sentence for each in held.results] == [each.sentence for each in made.verdict.results]
        assert held.warnings == made.verdict.warnings
    stricter = gate_report(tmp_path / "0" / "report.json", policy(*RULES, "score >= 0.999"))
    assert "Decided on the intervals of a report" in stricter.warnings[0]
    assert stricter.exit_code == 1


def test_a_damaged_verdict_of_a_report_is_refused(tmp_path: Path) -> None:
    given = policy("recovery >= 0.5")
    compare([FIXTURES / "passing"], tmp_path, policy=given, samples=False)
    values = json.loads((tmp_path / "report.json").read_text())
    values["gate"]["results"][0]["outcom"] = "pass"
    (tmp_path / "report.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"report\.json: .*outcom"):
        gate_report(tmp_path / "report.json", given)


def test_benchmarks_categories_and_contexts(report: Report, small_run: Path, tmp_path: Path) -> None:
    written(report, tmp_path)
    rules = [
        {"metric": "recovery", "min": 0.8, "benchmark": "arc_easy"},
        {"metric": "recovery", "min": 0.8, "category": "recall", "protocol": "generation"},
        {"metric": "score", "min": 0.3, "benchmark": "niah", "context": 512, "protocol": "generation"},
        {"metric": "gap", "max": 3, "benchmark": "arc_easy"},
    ]
    of_report, of_run = (
        gate_report(tmp_path / "report.json", policy(*rules)),
        run_gate([small_run], policy(*rules)),
    )
    assert [each.outcome for each in of_report.results] == [each.outcome for each in of_run.results]
    assert {each.outcome for each in of_run.results} >= {"pass", "regression"}
    one = gate_report(tmp_path / "report.json", policy(*rules), checkpoints=["strong"])
    assert {each.checkpoint for each in one.results} == {"strong"}


@pytest.mark.parametrize(
    ("rule", "more", "why"),
    [
        ({"metric": "kl", "max": 0.3}, {}, "kl needs documents or measurements"),
        ({"metric": "regression", "max": 9, "baseline": "x"}, {}, "regression needs documents"),
        ("decode_ratio@32k >= 1", {}, "decode_ratio needs documents or measurements"),
        ("recovery >= 0.1", {"benchmarks": ["facts"]}, "averages of the policy's 'benchmarks'"),
        ("recovery >= 0.1", {"errors": "exclude"}, "'errors', 'min_coverage' and"),
        ("recovery >= 0.1", {"over": "runs"}, "over training runs need documents"),
        ("recovery >= 0.1", {"run_spread": 1.2}, "over training runs need documents"),
        ({"metric": "recovery", "min": 0.1, "benchmark": "nothing"}, {}, "no recovery of the nothing"),
        ({"metric": "gap", "max": 99, "category": "recall"}, {}, "not of categories"),
        ({"metric": "agreement", "min": 0.1}, {}, "agreement is undefined: no benchmark has choices"),
    ],
)
def test_what_needs_the_run_is_named_and_never_passes(
    rule: Any, more: dict[str, Any], why: str, abstaining: Path
) -> None:
    verdict = gate_report(abstaining / "report.json", policy(rule, **more))
    assert verdict.exit_code == 3
    assert all(why in each.why for each in verdict.results)


def test_guesses_and_missing_documents_do_not_pass(abstaining: Path, tmp_path: Path) -> None:
    values = json.loads((abstaining / "report.json").read_text())
    for row in values["averages"]:
        if "point" in row["chance_normalized_recovery"]:
            row["chance_normalized_recovery"]["low"] = 0.1
    (tmp_path / "report.json").write_text(json.dumps(values))
    verdict = gate_report(tmp_path / "report.json", policy("recovery >= 0.5"))
    assert (verdict.exit_code, verdict.results[0].outcome) == (3, "unmeasured")
    assert "not proven to keep 50 % of the teacher's lead" in verdict.results[0].why
    for row in values["informative"]:
        row["lead"]["low"] = -0.9
    values["incomplete"] = [
        {"checkpoint": 1, "benchmark": "facts", "protocol": "generation", "context": None}
        | {"documents": 3, "planned": 120, "why": ""}
    ]
    (tmp_path / "report.json").write_text(json.dumps(values))
    verdict = gate_report(tmp_path / "report.json", policy("recovery >= 0.5"))
    assert {each.protocol: each.why for each in verdict.results} == {
        "loglikelihood": "the teacher's lead over chance of 60.8 points could be luck (p > 0.0001)",
        "generation": "facts: 'student' has 3 of 120 documents",
    }


def test_the_command_reads_the_folder_or_the_file(
    abstaining: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", str(abstaining), "--min-recovery", "0.5", "--out", str(tmp_path / "v")]) == 0
    assert "Decided on the intervals of a report" in capsys.readouterr().out
    assert (tmp_path / "v" / "junit.xml").is_file()
    assert main(["gate", str(abstaining / "report.json"), "--min-recovery", "0.9"]) == 2
    for more, message in (
        (["--teacher", "x"], "--teacher selects documents"),
        (["--benchmark", "facts"], "--benchmark selects documents"),
        ([str(FIXTURES / "passing")], "a report is gated alone"),
        (["--checkpoint", "studnet"], "did you mean 'student'"),
    ):
        capsys.readouterr()
        assert main(["gate", str(abstaining), *more, "--min-recovery", "0.5"]) >= 64
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a report of `evalsuite compare`"),
        ('{"averages": [], "schema": 4}', "schema 4, expected 5; write the report again"),
        ('{"averages": [], "schema": 5}', "a damaged report (KeyError"),
        ("{", "not JSON"),
    ],
)
def test_what_is_no_report_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        gate(GateConfig(runs=[tmp_path], min_recovery=0.9))

"""Students that diverged in training: named on every output, and unmeasured for the gate."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, compare, policy_from_options, run_gate
from evalsuite.reports.exports.samples.folder import export_samples
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.report import build_report
from evalsuite.reports.run import DivergedStudent, read_manifest, write_manifest

FIXTURES = Path(__file__).parent / "fixtures"
GLA = DivergedStudent(label="gla", stage="kd", step=12, tokens=53248, reason="the loss is nan")
WHY = "diverged in training (stage 'kd', step 12, after 53,248 tokens: the loss is nan)"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run that passes, which was to have another student."""
    shutil.copytree(FIXTURES / "passing", tmp_path / "run")
    write_manifest(tmp_path / "run", replace(read_manifest(tmp_path / "run"), diverged=(GLA,)))
    return tmp_path / "run"


def test_page_markdown_and_samples_name_them(run: Path, tmp_path: Path) -> None:
    compare([run], tmp_path / "out")
    export_samples(build_report([run]), tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"<b>Without a checkpoint:</b> gla {WHY.replace(chr(39), '&#39;')}." in page
    assert "'gla' diverged in training" in (tmp_path / "out" / "report.md").read_text()
    assert read_manifest(tmp_path / "out" / "samples").diverged == (GLA,)
    with open(tmp_path / "out" / "leaderboard.csv") as file:
        assert "gla" not in {row["label"] for row in csv.DictReader(file)}


def test_a_gate_on_every_student_cannot_pass(run: Path) -> None:
    policy = policy_from_options(min_recovery=0.9)
    assert run_gate([FIXTURES / "passing"], policy).exit_code == 0
    verdict = run_gate([run], policy)
    assert (verdict.exit_code, verdict.word) == (3, "could not be measured")
    assert {each.outcome for each in verdict.results if each.checkpoint == "gla"} == {"unmeasured"}
    name = "gla: recovery of informative benchmarks under loglikelihood"
    assert f"{name}: could not be measured: it {WHY}" in verdict.text


def test_a_gate_on_other_students_is_not_concerned(run: Path) -> None:
    student = next(each.label for each in read_manifest(run).checkpoints if each.role == "student")

    def named(*labels: str) -> Policy:
        return parse({"rules": [{"metric": "recovery", "min": 0.9, "checkpoints": labels}]}, Policy, "policy")

    assert run_gate([run], named(student)).exit_code == 0
    assert run_gate([run], named("gla")).exit_code == 3
    with pytest.raises(ConfigError, match="no run has a checkpoint 'glaa'"):
        run_gate([run], named("glaa"))


def test_a_selection_may_name_or_leave_them_out(run: Path) -> None:
    student = next(each.label for each in read_manifest(run).checkpoints if each.role == "student")
    for names, found in (((student,), ()), ((student, "gla"), (GLA,))):
        report = build_report([run], RunSelection(checkpoints=names))
        assert tuple(each.note for each in report.tensor.merged.diverged) == found


def test_a_diverged_student_alone_is_compared_with_nothing(run: Path) -> None:
    selection = RunSelection(checkpoints=("gla",))
    report = build_report([run], selection)
    assert [each.is_teacher for each in report.checkpoints] == [True]
    verdict = run_gate([run], policy_from_options(min_recovery=0.9), selection=selection)
    assert {(each.checkpoint, each.outcome) for each in verdict.results} == {("gla", "unmeasured")}


def test_a_run_that_has_the_student_counts(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(FIXTURES / "passing", other)
    student = next(each.label for each in read_manifest(other).checkpoints if each.role == "student")
    again = replace(GLA, label=student)
    write_manifest(other, replace(read_manifest(other), diverged=(again, GLA)))
    assert [each.note for each in build_report([run, other]).tensor.merged.diverged] == [GLA]


def test_another_model_of_its_label_does_not_hide_a_student(run: Path, tmp_path: Path) -> None:
    """Another run has a student that is called the same, in another folder."""
    other = tmp_path / "other"
    shutil.copytree(FIXTURES / "passing", other)
    plan = read_manifest(other)
    called = tuple(
        replace(each, label="gla", weights_id="ff" * 8, path="elsewhere/gla")
        if each.role == "student"
        else each
        for each in plan.checkpoints
    )
    write_manifest(other, replace(plan, checkpoints=called))
    for note in (GLA, replace(GLA, path="students/gla")):
        write_manifest(run, replace(read_manifest(run), diverged=(note,)))
        merged = build_report([run, other]).tensor.merged
        assert [each.label for each in merged.diverged] == ["gla (diverged)"]
        verdict = run_gate([run, other], policy_from_options(min_recovery=0.9))
        assert ("gla (diverged)", "unmeasured") in {(r.checkpoint, r.outcome) for r in verdict.results}
        named = parse(
            {"rules": [{"metric": "recovery", "min": 0.9}], "checkpoints": ["gla"]}, Policy, "policy"
        )
        with pytest.raises(ConfigError, match=r"'gla' \(policy\) is the name of 2 checkpoints"):
            run_gate([run, other], named)


def test_a_student_that_was_trained_again_in_its_folder_has_a_checkpoint(run: Path) -> None:
    plan = read_manifest(run)
    student = next(each for each in plan.checkpoints if each.role == "student")
    again = replace(GLA, path=f"./{student.path}")
    write_manifest(run, replace(plan, diverged=(again,)))
    assert build_report([run]).tensor.merged.diverged == ()


def test_two_students_of_one_label_are_two(run: Path, tmp_path: Path) -> None:
    notes = tuple(replace(GLA, path=path) for path in ("a/gla", "b/gla"))
    write_manifest(run, replace(read_manifest(run), diverged=notes))
    assert len(build_report([run]).tensor.merged.diverged) == 2
    export_samples(build_report([run]), tmp_path)
    assert {each.path for each in read_manifest(tmp_path / "samples").diverged} == {"a/gla", "b/gla"}

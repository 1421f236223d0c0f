"""Names of checkpoints: printed labels, ids and paths are names, and one that fits several is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, RunSelection, policy_from_options, run_gate
from evalsuite.reports.admission import AdmissionRule, admit
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.exports.samples.folder import export_samples
from evalsuite.reports.imports import import_logs
from evalsuite.reports.records.merging import merge_plans
from evalsuite.reports.records.names import Name, find, unique_labels
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import build_report
from evalsuite.reports.run import read_manifest, write_environment, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.imports.logs import LmEvalLog, task
from tests.reports.score_edits import edit_rows

LARGE, SMALL = task(1, 300, skill=6.0), task(3, 300, skill=2.0)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """lm-eval's logs of a weak `m/kda/final` and a strong `m/teacher/final`, imported one by one."""
    named = {"m/kda/final": SMALL, "m/teacher/final": LARGE}
    return [
        run
        for number, (name, each) in enumerate(named.items())
        for run in import_logs(
            [("lm-eval", LmEvalLog(name, {"arc": each}).write(tmp_path / f"log-{number}"))],
            tmp_path / f"runs-{number}",
        )
    ]


def run_of(folder: Path, labels: dict[str, float], label: str = "") -> Path:
    """A run whose checkpoints score `labels`; with `label`, all students are called so."""
    models = [
        SyntheticCheckpoint(name, lambda b, p, c, s=score: s, "student" if i else "teacher")
        for i, (name, score) in enumerate(labels.items())
    ]
    benchmark = SyntheticBenchmark("facts", "Facts", "knowledge", 200)
    run: Path = make_run(folder, [benchmark], models)
    if label:
        rename(run, lambda each: label if each.role == "student" else each.label)
    return run


def rename(run: Path, label: Any) -> None:
    plan = read_manifest(run)
    checkpoints = tuple(replace(each, label=label(each)) for each in plan.checkpoints)
    write_manifest(run, replace(plan, checkpoints=checkpoints))


def policy(**rule: Any) -> Policy:
    return parse(
        {"rules": [{"metric": "recovery", "min": 0.9, "protocol": "loglikelihood"} | rule]}, Policy, "p"
    )


def test_a_teacher_whose_label_another_model_has_is_refused(logs: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"'final' \(--teacher\) is the name of 2 checkpoints") as error:
        run_gate(logs, policy_from_options(min_recovery=0.95), selection=RunSelection(teacher="final"))
    for entry in merge_plans(logs).checkpoints:
        assert f"'{entry.label}' ({entry.path})" in str(error.value)


def test_every_printed_name_is_a_name(logs: list[Path]) -> None:
    """The true recovery is the student's share of the teacher's right answers."""
    right = SMALL.correct.mean() / LARGE.correct.mean()
    teacher = next(each for each in merge_plans(logs).checkpoints if each.path == "m/teacher/final")
    for name in (teacher.label, teacher.weights_id, "m/teacher/final", "./m/teacher/final/"):
        rules = policy_from_options(min_recovery=0.95)
        (result,) = run_gate(logs, rules, selection=RunSelection(teacher=name)).results
        assert (result.outcome, result.point) == ("regression", pytest.approx(right))


def test_an_ambiguous_selection_is_refused(logs: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"'final' \(--checkpoint\) is the name of 2"):
        merge_plans(logs, RunSelection(checkpoints=("final",)))
    merged = merge_plans(logs, RunSelection(teacher="m/teacher/final", checkpoints=("m/kda/final",)))
    assert [each.path for each in merged.checkpoints] == ["m/teacher/final", "m/kda/final"]


def test_a_policy_names_one_checkpoint(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path / "one", {"teacher": 0.8, "good": 0.8}, "final"),
        run_of(tmp_path / "two", {"teacher": 0.8, "bad": 0.4}, "final"),
    ]
    with pytest.raises(ConfigError, match=r"'final' \(policy\) is the name of 2 checkpoints"):
        run_gate(runs, policy(checkpoints=["final"]))
    for path, code in (("students/good", 0), ("students/bad", 1)):
        verdict = run_gate(runs, policy(checkpoints=[path]))
        assert (len(verdict.results), verdict.exit_code) == (1, code)


def test_admission_takes_paths_and_ids(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"teacher": 0.8, "weak": 0.3})
    weak = read_manifest(run).checkpoints[1]
    found = [
        admit(run, name, AdmissionRule(min_documents=100)) for name in ("weak", weak.weights_id, weak.path)
    ]
    assert found[0] == found[1] == found[2] != admit(run, None, AdmissionRule(min_documents=100))


def baseline_rule(baseline: Path, **more: Any) -> Policy:
    return policy(metric="regression", min=None, max=5, baseline=str(baseline), **more)


def test_a_baseline_is_the_checkpoint_of_the_same_weights(tmp_path: Path) -> None:
    """In the baseline another model has the label that the student has today."""
    before = run_of(tmp_path / "before", {"teacher": 0.8, "kda": 0.5, "gla": 0.7})
    swapped = {"kda": "gla", "gla": "kda"}
    now = run_of(tmp_path / "now", {"teacher": 0.8, "kda": 0.5, "gla": 0.7})
    rename(now, lambda each: swapped.get(each.label, each.label))
    for result in run_gate([now], baseline_rule(before)).results:
        assert (result.point, result.outcome) == (0.0, "pass")


def test_an_ambiguous_baseline_is_not_measured(tmp_path: Path) -> None:
    """Two students are called alike today, and the baseline has one of that name."""
    before = run_of(tmp_path / "before", {"teacher": 0.8, "old": 0.5}, "final")
    runs = [run_of(tmp_path / name, {"teacher": 0.8, name: 0.5}, "final") for name in ("x", "y")]
    verdict = run_gate(runs, baseline_rule(before))
    assert (verdict.exit_code, len(verdict.results)) == (3, 2)
    assert "name it as baseline_checkpoint" in verdict.results[0].why
    named = run_gate(runs, baseline_rule(before, baseline_checkpoint="students/old"))
    assert named.exit_code in (0, 2)


def test_a_baseline_of_another_name_is_no_counterpart(tmp_path: Path) -> None:
    """The only student of the baseline is not taken for a student of another name."""
    before = run_of(tmp_path / "before", {"teacher": 0.8, "gla": 0.5})
    verdict = run_gate([run_of(tmp_path / "now", {"teacher": 0.8, "kda": 0.5})], baseline_rule(before))
    assert verdict.exit_code == 3
    assert "no run has a checkpoint 'kda'" in verdict.results[0].why


def test_a_student_keeps_the_teacher_of_its_run(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", {"teacher": 0.8, "kda": 0.6})
    other = run_of(tmp_path / "other", {"unrelated": 0.5, "stranger": 0.5})
    pairs = {
        each.label: merged.checkpoints[each.teacher].label
        for merged in (merge_plans([one, other]), merge_plans([other, one]))
        for each in merged.checkpoints
        if each.teacher is not None
    }
    assert pairs == {"kda": "teacher", "stranger": "unrelated"}
    assert load_result_tensor([one, other]).checkpoints[1].label == "kda"


def again(run: Path, to: Path, only: str, **engine: Any) -> Path:
    """The run with one protocol, whose checkpoints an engine evaluated under another fingerprint."""
    shutil.copytree(run, to)
    for path in (to / "scores").glob("*.parquet"):
        if f".{only}." not in path.name:
            path.unlink()
    edit_rows(
        to, "facts", only, lambda _, row: row | {"fingerprint": f"{engine['engine']}{row['weights_id']}"}
    )
    plan = read_manifest(to)
    facts = {
        each.weights_id: {"fingerprint": f"{engine['engine']}{each.weights_id}", **engine}
        for each in plan.checkpoints
    }
    write_environment(to, {"engines": facts})
    protocols = {only: plan.benchmarks[0].protocols[only]}
    benchmark = replace(plan.benchmarks[0], protocols=protocols)
    write_manifest(to, replace(plan, benchmarks=(benchmark,)))
    return to


@pytest.fixture
def engines(tmp_path: Path) -> list[Path]:
    """One protocol by one engine, the other by another: two runs of the same weights."""
    run = run_of(tmp_path / "run", {"teacher": 0.8, "kda": 0.5})
    torch = again(run, tmp_path / "torch", "loglikelihood", engine="torch", versions={"dtype": "float32"})
    vllm = again(run, tmp_path / "vllm", "generation", engine="vllm", versions={"dtype": "float16"})
    return [torch, vllm]


def test_rows_of_two_engines_share_no_checkpoint(engines: list[Path]) -> None:
    report = build_report(engines)
    labels = [
        "teacher (torch float32)",
        "kda (torch float32)",
        "teacher (vllm float16)",
        "kda (vllm float16)",
    ]
    assert [each.label for each in report.checkpoints] == labels
    assert [each.teacher for each in report.checkpoints] == [None, 0, None, 2]
    protocols = {(row.checkpoint, row.protocol) for row in report.scores}
    assert protocols == {(0, "loglikelihood"), (1, "loglikelihood"), (2, "generation"), (3, "generation")}
    assert not report.gaps
    found = merge_plans(engines, RunSelection(teacher=labels[0], checkpoints=(labels[1],)))
    assert [each.label for each in found.checkpoints] == labels[:2]
    for name in ("kda", report.checkpoints[1].weights_id, "students/kda"):
        with pytest.raises(ConfigError, match="is the name of 2 checkpoints"):
            run_gate(engines, policy(checkpoints=[name]))
    (fingerprint,) = report.checkpoints[1].scored_as
    assert len(run_gate(engines, policy(checkpoints=[fingerprint])).results) == 1


def test_the_same_model_under_two_engines_is_declared(engines: list[Path], tmp_path: Path) -> None:
    selection = RunSelection(same=("teacher", "kda"))
    for order in (engines, engines[::-1]):
        report = build_report(order, selection)
        assert [each.label for each in report.checkpoints] == ["teacher", "kda"]
        assert {row.protocol for row in report.scores if row.checkpoint == 1} == {
            "loglikelihood",
            "generation",
        }
        assert report.gaps
        assert "Declared as one checkpoint each (--same): teacher; kda." in report.warnings


def test_exported_samples_keep_what_is_one_and_what_is_two(engines: list[Path], tmp_path: Path) -> None:
    for name, selection in (("two", RunSelection()), ("one", RunSelection(same=("teacher", "kda")))):
        report = build_report(engines, selection)
        export_samples(report, tmp_path / name)
        stored = build_report([tmp_path / name / "samples"])
        assert [(each.label, each.teacher) for each in stored.checkpoints] == [
            (each.label, each.teacher) for each in report.checkpoints
        ]
        assert [row.score for row in stored.scores] == [row.score for row in report.scores]
        assert set(score_table(tmp_path / name / "samples")["label"]) == {e.label for e in report.checkpoints}


def test_one_model_under_two_harnesses_is_declared(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", {"teacher": 0.8, "kda": 0.5})
    model = SyntheticCheckpoint("kda-again", lambda *_: 0.5)
    benchmark = SyntheticBenchmark("piqa", "PIQA", "common_sense", 100)
    teacher = SyntheticCheckpoint("teacher", lambda *_: 0.8, "teacher")
    other = make_run(tmp_path / "other", [benchmark], [teacher, model])
    selection = RunSelection(same=("model=students/kda,kda-again",))
    report = build_report([one, other], selection)
    assert [each.label for each in report.checkpoints] == ["teacher", "model"]
    assert {row.benchmark for row in report.scores if row.checkpoint == 1} == {"facts", "piqa"}
    export_samples(report, tmp_path)
    stored = build_report([tmp_path / "samples"])
    assert [row.score for row in stored.scores] == [row.score for row in report.scores]


@pytest.mark.parametrize(
    ("same", "message"),
    [
        ("kdaa", r"no run has a checkpoint 'kdaa' \(--same kdaa\); did you mean 'kda'"),
        ("final", r"have different weights; --same 'final=NAME,NAME'"),
        ("model=kda", "gives several checkpoints one label"),
        ("=kda,teacher", "gives several checkpoints one label"),
        ("model=kda,final", r"'final' \(--same .*\) is the name of 2 checkpoints"),
    ],
)
def test_declarations_that_say_nothing_are_refused(tmp_path: Path, same: str, message: str) -> None:
    runs = [
        run_of(tmp_path / "one", {"teacher": 0.8, "kda": 0.5}),
        *(run_of(tmp_path / name, {"teacher": 0.8, name: 0.5}, "final") for name in ("x", "y")),
    ]
    with pytest.raises(ConfigError, match=message):
        merge_plans(runs, RunSelection(same=(same,)))


def test_labels_are_names_of_one_checkpoint_only() -> None:
    known = [Name("a", ("b", "11aa")), Name("b", ("11ab",)), Name("c", paths=("d",)), Name("d"), Name("d")]
    suffixes = [("11", "11aa"), ("11", "11ab"), ("1",), ("2", "22"), ("2", "23")]
    labels = unique_labels(known, suffixes)
    assert labels == ["a", "b (11)", "c", "d (22)", "d (23)"]
    named = [Name(label, each.names, each.paths) for label, each in zip(labels, known, strict=True)]
    assert [find(label, named, "here") for label in labels] == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"no run has a checkpoint 'bb' \(here\); known: a, b"):
        find("bb", named, "here")

"""Several runs as one: what is compared is the same documents, and what is left out is said."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from evalsuite.foundation import ConfigError, DataError, RunFolderError
from evalsuite.reports.merging import merge_plans
from evalsuite.reports.panel import load_panel
from evalsuite.reports.records import records_path
from evalsuite.reports.run_folder import read_plan, write_plan
from evalsuite.reports.scores import write_scores


def two(
    dice: SimpleNamespace, run: Path, labels: tuple[str, ...] = ("teacher", "student"), **asked: Any
) -> Path:
    """A run of one benchmark; the first label is the teacher."""
    answerers = [
        dice.Answerer(label, lambda b, p, c: 0.7, "teacher" if i == 0 else "student")
        for i, label in enumerate(labels)
    ]
    benchmarks = [dice.Asked("facts", "Facts", "knowledge", **({"documents": 60} | asked))]
    return dice.make_run(run, benchmarks, answerers)


def edit(path: Path, change: Any) -> None:
    """Apply `change` to every row of a journal; rows for which it gives None vanish."""
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def test_the_plan_survives_its_file(small_run: Path, tmp_path: Path) -> None:
    plan = read_plan(small_run)
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert plan.schema_ == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sutie", "x", "unknown key 'sutie'; did you mean 'suite'"),
        ("schema", 2, "'schema' = 2"),
        ("checkpoints", [], "'checkpoints'"),
    ],
)
def test_a_plan_of_another_form_is_refused(
    small_run: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    plan = yaml.safe_load((small_run / "plan.yaml").read_text())
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan | {key: value}))
    with pytest.raises(ConfigError, match=r"plan\.yaml") as caught:
        read_plan(tmp_path)
    assert message in str(caught.value)


def test_a_folder_without_a_plan_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no run folder \(there is no plan\.yaml"):
        load_panel([tmp_path])
    with pytest.raises(ConfigError, match="no run folders"):
        load_panel([])


def test_cells_hold_the_answers(small_run: Path) -> None:
    panel = load_panel([small_run])
    assert [subject.label for subject in panel.subjects] == ["teacher", "strong", "weak"]
    assert [subject.teacher for subject in panel.subjects] == [None, 0, 0]
    assert panel.warnings == ()
    facts = panel.find("arc_easy", "loglikelihood")[0]
    assert facts.answers.shape == (3, 1, 400)
    assert sorted(set(facts.documents)) == list(facts.documents)
    rows = [json.loads(line) for line in records_path(small_run, "arc_easy", "loglikelihood").open()]
    mine = {row["doc_id"]: row["values"]["acc"] for row in rows if row["checkpoint"] == "weak"}
    assert [mine[document] for document in facts.documents] == facts.scores()[2].tolist()
    assert np.all(facts.chance == 0.25)
    assert [cell.context for cell in panel.find("niah", "generation")] == [512, 1024]
    assert panel.find("wikitext", "loglikelihood")[0].units.mean() > 1


def test_a_student_is_paired_with_the_only_teacher_though_its_lineage_is_silent(
    dice: SimpleNamespace, tmp_path: Path
) -> None:
    assert [s.teacher for s in merge_plans([two(dice, tmp_path)]).subjects] == [None, 0]


def test_two_runs_are_joined_by_weights(dice: SimpleNamespace, tmp_path: Path) -> None:
    one = two(dice, tmp_path / "one", ("teacher", "gla"))
    other = two(dice, tmp_path / "other", ("teacher", "kda"))
    panel = load_panel([one, other])
    assert [subject.label for subject in panel.subjects] == ["teacher", "gla", "kda"]
    assert panel.cells[0].answers.shape == (3, 1, 60)
    assert panel.warnings == ()


def test_two_different_answers_of_one_checkpoint_are_refused(dice: SimpleNamespace, tmp_path: Path) -> None:
    one, other = two(dice, tmp_path / "one"), two(dice, tmp_path / "other")
    journal = records_path(other, "facts", "loglikelihood")
    edit(journal, lambda row: row | {"values": {"acc": 1 - row["values"]["acc"]}})
    with pytest.raises(DataError, match=r"two different answers to document .*, line \d+, and .*line"):
        load_panel([one, other])


def test_runs_that_ask_differently_are_refused(dice: SimpleNamespace, tmp_path: Path) -> None:
    one, other = two(dice, tmp_path / "one"), two(dice, tmp_path / "other")
    plan = yaml.safe_load((other / "plan.yaml").read_text())
    plan["benchmarks"][0]["protocols"]["loglikelihood"]["shots"] = 5
    (other / "plan.yaml").write_text(yaml.safe_dump(plan))
    with pytest.raises(DataError, match="benchmark 'facts' has shots 5, but 0"):
        load_panel([one, other])


def test_an_unfinished_checkpoint_is_left_out_and_named(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path, ("teacher", "done", "unfinished"))
    kept = iter(range(10_000))
    edit(
        records_path(run, "facts", "loglikelihood"),
        lambda row: row if row["checkpoint"] != "unfinished" or next(kept) < 20 else None,
    )
    panel = load_panel([run])
    assert panel.find("facts", "loglikelihood")[0].present == (0, 1)
    assert panel.find("facts", "generation")[0].present == (0, 1, 2)
    assert any("'unfinished' answered only 20 of the 60 documents" in w for w in panel.warnings)


def test_a_limited_student_is_compared_on_its_documents(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path)
    kept = iter(range(10_000))
    edit(
        records_path(run, "facts", "loglikelihood"),
        lambda row: row if row["checkpoint"] == "teacher" or next(kept) < 30 else None,
    )
    panel = load_panel([run])
    assert len(panel.find("facts", "loglikelihood")[0].documents) == 30
    assert any("compared are the 30 that all answered, of up to 60" in w for w in panel.warnings)


def test_documents_asked_in_other_words_are_not_compared(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path)
    changed = iter(range(10_000))
    edit(
        records_path(run, "facts", "loglikelihood"),
        lambda row: (
            row | {"prompt_hash": "other"} if row["checkpoint"] == "student" and next(changed) < 5 else row
        ),
    )
    panel = load_panel([run])
    assert len(panel.find("facts", "loglikelihood")[0].documents) == 55
    assert any("asked 5 documents in other words" in w for w in panel.warnings)


def test_errors_are_counted_and_never_a_zero(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path)
    wrong = iter(range(10_000))
    edit(
        records_path(run, "facts", "generation"),
        lambda row: (
            row | {"outcome": "error", "values": {}}
            if row["checkpoint"] == "student" and next(wrong) < 3
            else row
        ),
    )
    panel = load_panel([run])
    assert len(panel.find("facts", "generation")[0].documents) == 57
    assert panel.errors == {(1, "facts", "generation"): 3}
    assert any("3 generation answers of 'student' ended in an error" in w for w in panel.warnings)


def test_a_second_fingerprint_is_left_out_and_named(dice: SimpleNamespace, tmp_path: Path) -> None:
    one, other = two(dice, tmp_path / "one"), two(dice, tmp_path / "other")
    for protocol in ("loglikelihood", "generation"):
        edit(records_path(other, "facts", protocol), lambda row: row | {"fingerprint": "bf16"})
    panel = load_panel([one, other])
    assert len(panel.cells[0].documents) == 60
    assert any("was run more than once under loglikelihood" in w for w in panel.warnings)


def test_a_score_that_is_no_fraction_is_refused(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path)
    edit(records_path(run, "facts", "loglikelihood"), lambda row: row | {"values": {"acc": 55.0}})
    with pytest.raises(DataError, match="line 1: acc = 55; a score is a fraction"):
        load_panel([run])


def test_other_sampling_is_left_out_or_refused(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path)
    journal = records_path(run, "facts", "generation")
    extra = [json.loads(line) | {"sampling": "t0.7"} for line in journal.read_text().splitlines()]
    journal.write_text(journal.read_text() + "".join(json.dumps(row) + "\n" for row in extra))
    assert any("with sampling 't0.7' are left out" in w for w in load_panel([run]).warnings)
    edit(journal, lambda row: row | {"sampling": "t0.9"} if row["sampling"] == "greedy" else None)
    with pytest.raises(DataError, match=r"says sampling 'greedy', the generation records have 't0\.9'"):
        load_panel([run])


def test_the_teacher_can_be_named(dice: SimpleNamespace, tmp_path: Path) -> None:
    run = two(dice, tmp_path, ("teacher", "a", "b"))
    subjects = load_panel([run], teacher="b").subjects
    assert [(s.label, s.teacher) for s in subjects] == [("b", None), ("teacher", 0), ("a", 0)]
    with pytest.raises(ConfigError, match="'bb' is in none of the runs"):
        load_panel([run], teacher="bb")


def test_two_checkpoints_of_one_name_are_told_apart(dice: SimpleNamespace, tmp_path: Path) -> None:
    one, other = two(dice, tmp_path / "one"), two(dice, tmp_path / "other", ("teacher", "gla"))
    plan = yaml.safe_load((other / "plan.yaml").read_text())
    plan["checkpoints"][1]["label"] = "student"
    (other / "plan.yaml").write_text(yaml.safe_dump(plan))
    labels = [subject.label for subject in load_panel([one, other]).subjects]
    assert len(set(labels)) == 3
    assert all(label.startswith("student (") for label in labels[1:])


def test_each_student_is_compared_with_the_teacher_of_its_lineage(
    dice: SimpleNamespace, tmp_path: Path
) -> None:
    big = dice.Answerer("big", lambda b, p, c: 0.8, "teacher")
    small = dice.Answerer("small", lambda b, p, c: 0.6, "teacher")
    mine = dice.Answerer(
        "mine", lambda b, p, c: 0.5, lineage={"teacher": {"weights_id": small.weights_id, "path": "small"}}
    )
    lost = dice.Answerer("lost", lambda b, p, c: 0.5)
    run = dice.make_run(tmp_path, [dice.Asked("facts", "Facts", "knowledge", 40)], [big, small, mine, lost])
    panel = load_panel([run])
    assert [(s.label, s.teacher) for s in panel.subjects] == [
        ("big", None),
        ("small", None),
        ("mine", 1),
        ("lost", None),
    ]
    assert any("'lost' does not say which of the 2 teachers" in w for w in panel.warnings)


def test_scores_are_written_beside_the_records(small_run: Path) -> None:
    table = write_scores(small_run)
    assert (small_run / "scores.parquet").exists()
    row = table[
        (table["label"] == "weak") & (table["benchmark"] == "niah") & (table["context"] == 1024)
    ].iloc[0]
    panel = load_panel([small_run])
    assert row["score"] == pytest.approx(panel.find("niah", "generation")[1].scores()[2].mean())
    assert row["low"] < row["score"] < row["high"]
    assert row["documents"] == row["ok"] + row["looped"] + row["truncated"] + row["extraction_failed"] == 100


def test_a_student_that_was_interrupted_can_be_left_out(dice: SimpleNamespace, tmp_path: Path) -> None:
    """What was answered before a machine was taken away is no sample, however well it can be paired."""
    run = dice.make_run(
        tmp_path / "run",
        [
            dice.Asked("arc_easy", "ARC-Easy", "knowledge", 100),
            dice.Asked("piqa", "PIQA", "common_sense", 100),
        ],
        [dice.Answerer("t", lambda b, p, c: 0.7, "teacher"), dice.Answerer("s", lambda b, p, c: 0.6)],
    )
    path = records_path(run, "piqa", "loglikelihood")
    rows = path.read_text().splitlines(True)
    mine = [row for row in rows if '"checkpoint": "s"' in row]
    path.write_text("".join([row for row in rows if row not in mine] + mine[:60]))
    whole = load_panel([run])
    assert len(whole.find("piqa", "loglikelihood")[0].documents) == 60
    panel = load_panel([run], least=0.75)
    (cell,) = panel.find("piqa", "loglikelihood")
    assert (cell.present, len(cell.documents)) == ((0,), 100)
    assert panel.find("piqa", "generation")[0].present == (0, 1)
    said = "'s' answered 60 of 100 documents under loglikelihood, less than 75 %, and is left out there"
    assert any(said in warning for warning in panel.warnings)
    assert load_panel([run], least=0.6).find("piqa", "loglikelihood")[0].present == (0, 1)


def test_the_headline_says_what_a_recovery_is_over(dice: SimpleNamespace, tmp_path: Path) -> None:
    from evalsuite.reports.report import build_report
    from evalsuite.reports.words import headline

    run = dice.make_run(
        tmp_path / "run",
        [
            dice.Asked("arc_easy", "ARC-Easy", "knowledge", 100, protocols=("loglikelihood",)),
            dice.Asked("piqa", "PIQA", "common_sense", 100, protocols=("loglikelihood",)),
        ],
        [dice.Answerer("t", lambda b, p, c: 0.7, "teacher"), dice.Answerer("s", lambda b, p, c: 0.6)],
    )
    path = records_path(run, "piqa", "loglikelihood")
    rows = path.read_text().splitlines(True)
    path.write_text("".join(row for row in rows if '"checkpoint": "s"' not in row))
    report = build_report([run])
    row = report.average(1, "loglikelihood")
    assert row is not None
    assert row.recovery.point is not None
    assert headline(report) == (
        f"s recovers {100 * row.recovery.point:.1f} % of its teacher when its answers are ranked, "
        "over 1 of 2 benchmarks; it has not answered the others."
    )

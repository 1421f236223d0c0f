"""The selector study: tables, and the complete study on the pocket teacher."""

import csv
import json
import shutil
from types import SimpleNamespace

import pytest

from evalsuite.evaluation.shards.export import export_shard, is_complete
from evalsuite.foundation import ConfigError, DataError, locked
from evalsuite.models import describe_checkpoint
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.records.sidecars import read_selections
from evalsuite.reports.run import read_manifest
from evalsuite.reports.statistics.intervals import wilson
from evalsuite.reports.statistics.paired import score_interval
from evalsuite.reports.studies.selection import __main__ as study
from evalsuite.reports.studies.selection import tables, transfer

TINY = ["stage.mixer.tokens=1k", "stage.block.tokens=1k", "stage.kd.tokens=1k", "stage.seq_len=128"]
BRIEF = ["num_examples=4", "num_pairs=8", "held_out=2", "snapshot_interval=1", "tokens=1k", "align_tokens=1k"]


def answers(right: str) -> tables.Answers:
    return {("pocket_recall", "loglikelihood", -1, str(i)): mark == "1" for i, mark in enumerate(right)}


def test_differences_are_paired_by_document():
    chosen = {
        ("uniform", 1): {"selector": "uniform", "layers": [0]},
        ("kv", 1): {"selector": "kv", "layers": [2]},
        ("ar", 1): {"selector": "ar", "layers": [0]},
    }
    found = {"layers-0": answers("1100000000"), "layers-2": answers("1011110000")}
    groups = {"recall": tables.groups_of("pocket-recall")["recall"]}
    lines = {line.selector: line for line in tables.compared(chosen, found, groups)}
    assert lines["kv"].score == wilson(5, 10)
    assert lines["kv"].minus_uniform == score_interval(4, 1, 10)
    assert lines["ar"].minus_uniform is None
    assert lines["uniform"].minus_uniform is None
    column = tables.COLUMNS.index("minus_uniform")
    assert [row[column] for row in tables.csv_rows(list(lines.values()))] == ["", "0.3000", ""]
    table = tables.as_markdown(list(lines.values()), groups)
    assert "| 2 | kv | 50.0 (23.7 to 76.3); +30.0 (" in table
    assert "| 0 | uniform, ar | 20.0 (" in table


def test_partial_credit_counts_in_part(tmp_path, monkeypatch):
    """RULER's lists and F1 give a share of a document, not all or nothing."""
    frame = {
        "checkpoint": ["s"] * 40,
        "context": [4096] * 40,
        "doc_id": list(map(str, range(40))),
        "value.acc": [1.0, 0.75, 0.5, 0.0] * 10,
    }
    monkeypatch.setattr(tables, "read_run_scores", lambda *_: frame)
    needles = SimpleNamespace(name="niah", protocols=["generation"], generation=SimpleNamespace(metric="acc"))
    groups = {"needles": [needles]}
    found = tables.read_answers(tmp_path, groups)
    assert tables.plain_scores(found["s"], groups)["needles", "generation"].point == pytest.approx(2.25 / 4)
    zero = dict.fromkeys(found["s"], 0.0)
    chosen = {(name, 1): {"layers": [layer]} for layer, name in enumerate(("uniform", "kv"))}
    lines = tables.compared(chosen, {"layers-0": zero, "layers-1": found["s"]}, groups)
    difference = lines[1].minus_uniform
    assert difference.point == pytest.approx(2.25 / 4)
    assert 0 < difference.low < 2.25 / 4 < difference.high < 1


def test_partially_evaluated_students_are_left_out():
    chosen = {(name, 1): {"layers": [layer]} for layer, name in enumerate(("uniform", "kv", "ar"))}
    found = {"layers-0": answers("10"), "layers-1": answers("1")}
    done, left = tables.fully_evaluated(chosen, found)
    assert (list(done), left) == ([("uniform", 1)], ["kv at 1", "ar at 1"])
    groups = {"recall": tables.groups_of("pocket-recall")["recall"]}
    with pytest.raises(DataError, match="'uniform' at 1 softmax layers"):
        tables.compared({("kv", 1): chosen["kv", 1]}, found, groups)


def test_students_are_compared_that_differ_in_layers_alone_or_in_mixer_alone():
    def marks(one: float, other: float) -> tables.Answers:
        values = {("niah", "0"): 1.0, ("niah", "1"): one, ("vt", "0"): other, ("vt", "1"): 0.0}
        return {(name, "generation", 1024, document): mark for (name, document), mark in values.items()}

    mixers = {
        "a": ["softmax", "gla"],
        "b": ["gla", "softmax"],
        "c": ["softmax", "kda"],
        "d": ["softmax", "softmax"],
    }
    answers = {
        "teacher": marks(0.0, 0.5),
        "a": marks(1.0, 1.0),
        "b": marks(0.0, 0.0),
        "c": marks(1.0, 0.5),
        "d": marks(1, 1),
    }
    found = transfer.with_means(answers, "teacher")
    rows = transfer.difference_rows(found, mixers)
    assert list(dict.fromkeys((row[0], row[1]) for row in rows)) == [("a", "b"), ("a", "c")]
    shown = {row[2]: (row[5], row[6]) for row in rows if row[1] == "b"}
    assert shown == {
        "niah": (2, "0.5000"),
        "vt": (2, "0.5000"),
        transfer.ALL: (4, "0.5000"),
        transfer.ABLE: (2, "0.5000"),
    }
    assert [row[6] for row in rows if row[1] == "c"] == ["0.0000", "0.2500", "0.1250", "0.0000"]


def test_needles_and_recall_are_separate_groups():
    groups = tables.groups_of("pocket-recall")
    assert [str(benchmark.name) for benchmark in groups["recall"]] == ["pocket_recall"]
    assert len(groups["needles"]) == 3


def test_reference_selector_is_required(tmp_path):
    with pytest.raises(ConfigError, match="must include 'uniform'"):
        study.study("pocket", tmp_path, mixer="gla", budgets=[1], selectors=["kv"], suite="pocket-recall")


@pytest.mark.long
def test_complete_study_is_resumable(tmp_path, monkeypatch):
    settings = {
        "mixer": "gated_deltanet",
        "budgets": [1],
        "selectors": ["uniform", "fixed"],
        "suite": "pocket-recall",
        "overrides": TINY,
        "options": [*BRIEF, "layers=[3]"],
        "limit": 2,
        "quiet": True,
    }
    lines = study.study("pocket", tmp_path, **settings)
    assert {line.layers for line in lines} == {(0,), (3,)}
    assert {line.group for line in lines} == {"recall", "needles"}
    assert (tmp_path / "students" / "all-linear" / "lineage.json").exists()
    (selections,) = [read_selections([tmp_path / "run"])]
    assert len(selections) == 2
    assert all(selection.quality for selection in selections)
    lineage = json.loads((tmp_path / "students" / "layers-3" / "lineage.json").read_text())
    assert lineage["mixers"] == ["gated_deltanet"] * 3 + ["softmax"]
    monkeypatch.setattr("evalsuite.distill.training.trainer.Trainer.train", None)
    assert study.study("pocket", tmp_path, **settings) == lines
    out = tmp_path / "students.csv"
    by_benchmark = tmp_path / "by_benchmark.csv"
    assert transfer.main([str(tmp_path / "run"), "--out", str(out), "--scores", str(by_benchmark)]) == 0
    assert "teacher at least half" in by_benchmark.read_text()
    rows = {row["layers"]: row for row in csv.DictReader(out.read_text().splitlines())}
    assert set(rows) == {"", "0", "3"}
    for line in lines:
        shown = rows[str(line.layers[0])][f"{line.group} {line.protocol}"]
        assert shown == f"{line.score.point:.4f}"


@pytest.mark.long
def test_steps_on_two_machines_and_two_processes(tmp_path):
    """Built and scored on one machine; selection, distillation and inference in two processes elsewhere."""
    settings = {
        "mixer": "gated_deltanet",
        "budgets": [1],
        "selectors": ["uniform", "ga_s2"],
        "suite": "pocket-recall",
        "overrides": TINY,
        "options": BRIEF,
        "limit": 2,
        "quiet": True,
    }
    home, away = tmp_path / "home", tmp_path / "away"
    assert study.study("pocket", home, steps=["build"], **settings) == []
    shutil.copytree(home / "run", away / "run")
    study.study("pocket", away, steps=["select", "distill"], complete=True, ablate_layers=[1], **settings)
    (alone,) = json.loads((away / "single_candidates.json").read_text())
    assert alone["layer"] == 1
    complete = json.loads((away / "complete" / "ga_s2.json").read_text())
    chosen = json.loads((away / "layers" / "ga_s2-1.json").read_text())
    assert complete["history"][: len(chosen["history"])] == chosen["history"]
    for rank in (1, 0):
        made = study.Study("pocket", away, "gated_deltanet", TINY, BRIEF, "cpu", True)
        made.process_group = SimpleNamespace(
            rank=rank,
            world_size=2,
            is_main=rank == 0,
            barrier=lambda: None,
            device="cpu",
            device_name="CPU",
        )
        # Two of three in one call, the third in another, which must not copy the requests again.
        made.infer([str(away / "students" / "all-linear"), "pocket"])
        made.infer([str(path) for path in sorted((away / "students").glob("layers-*"))])
    weights = describe_checkpoint(away / "students" / "all-linear").weights_id
    assert [is_complete(away / run, weights) for run in ("run", "run-1")] == [True, False]
    assert (away / "run-1" / "responses").is_dir()
    shutil.copytree(away / "layers", home / "layers")
    for number, run in enumerate(("run", "run-1")):
        export_shard(away / run, home / f"run-{number}.tar.xz")
    lines = study.study("pocket", home, steps=["score"], **settings)
    by = {each.label: lineage_of(each).selector for each in read_manifest(home / "run").checkpoints}
    assert by["pocket"] is by["all-linear"] is None
    assert {name for names in by.values() if names for name in names.split(", ")} == {"uniform", "ga_s2"}
    assert {line.selector for line in lines} == {"uniform", "ga_s2"}
    rows = list(csv.DictReader((home / "selectors.csv").open()))
    assert {row["selector"] for row in rows} == {"teacher", "no softmax layer", "uniform", "ga_s2"}
    assert "| teacher | " in (home / "selectors.md").read_text()
    scores = list(csv.DictReader((home / "scores.csv").open()))
    assert {row["context"] for row in scores} == {"", "128", "256", "512"}
    assert {row["checkpoint"] for row in scores} >= {"pocket", "all-linear"}


def test_processes_share_the_students(tmp_path):
    def chosen(name, layers):
        (tmp_path / "layers").mkdir(exist_ok=True)
        (tmp_path / "layers" / f"{name}.json").write_text(json.dumps({"layers": layers}))

    chosen("uniform-1", [0])
    chosen("kv-1", [2])
    mine = study.Study("pocket", tmp_path, "gla", (), (), "cpu", True, 1)._unclaimed(teacher=True)
    with locked(tmp_path / "claims" / "layers-2.lock"):
        assert [next(mine), next(mine)] == [None, (0,)]
        other = study.Study("pocket", tmp_path, "gla", (), (), "cpu", True, 2)._unclaimed(teacher=False)
        chosen("ar-2", [1, 3])
        assert list(mine) == [(1, 3), ()]
    # Free again, since the other process has finished.
    assert list(other) == [(0,), (2,), (1, 3), ()]


def test_unknown_steps_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="step 'distil'; did you mean 'distill'"):
        study.study(
            "pocket",
            tmp_path,
            mixer="gla",
            budgets=[1],
            selectors=["uniform"],
            suite="pocket-recall",
            steps=["distil"],
        )


def test_error_is_one_message(tmp_path, capsys):
    argv = ["pocket", "--mixer", "gla", "--budget", "1", "--selectors", "kv", "--out", str(tmp_path)]
    assert study.main(argv) == ConfigError.exit_code
    assert capsys.readouterr().err.startswith(f"{study.NAME}: --selectors must include 'uniform'")


def test_selection_suite_has_needles_and_short_questions():
    groups = tables.groups_of("reports/studies/suites/selection.yaml")
    assert [str(each.name) for each in groups["needles"]] == [f"niah_single_{i}" for i in (1, 2, 3)]
    assert len(groups["short questions"]) == 6
    # ARC also has generation, but this suite uses log-likelihood only.
    assert {each.protocols for each in groups["short questions"]} == {("loglikelihood",)}

"""A student's loss curve goes where its answers go: into the run, home in a piece, onto the page."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.distill.training.metrics import loss_curve
from evalsuite.evaluation.run_paths import read_built
from evalsuite.evaluation.shards.export import export_shard
from evalsuite.evaluation.shards.merge import merge_shards
from evalsuite.foundation import DataError
from evalsuite.reports import compare
from evalsuite.reports.measures.training import loss_curves, training_views
from evalsuite.reports.records.loss_curves import loss_curve_path, read_loss_curves
from evalsuite.reports.run import write_manifest
from tests.evaluation.runs import evaluate_quietly


def write_curve(folder: Path, loss: float, steps: int = 40) -> Path:
    """What a distillation leaves in a student's folder."""
    metrics: list[dict[str, Any]] = [
        {
            "stage": stage,
            "tokens": 64 * (start + n),
            "student": "me",
            "loss": loss / n,
            "lr": 1e-3,
            "seconds": n,
        }
        for stage, start in (("align", 0), ("kd", steps))
        for n in range(1, steps + 1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lineage.json").write_text('{"schema": 1}')
    path = folder / "training.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in loss_curve(metrics, "me")))
    return path


def tear(path: Path) -> None:
    """Cut the file in the middle of its last line, which is the 80th."""
    path.write_bytes(path.read_bytes()[:-20])


def curves(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "training").glob("*")}


def test_loss_curves_are_copied_and_plotted(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    crew.training = {"a": write_curve(tmp_path / "a", 3.0), "c": write_curve(tmp_path / "c", 5.0)}
    by_hand = write_curve(tmp_path / "hand", 4.0).read_bytes()
    for label in ("a", "b"):
        loss_curve_path(run, label).parent.mkdir(parents=True, exist_ok=True)
        loss_curve_path(run, label).write_bytes(by_hand)
    evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run, teacher="t")
    evaluate_quietly(suite=suite, checkpoints=["c"], out=run)
    # A student's own curve stands above one that somebody put there.
    assert curves(run) == {
        "a.jsonl": crew.training["a"].read_bytes(),
        "b.jsonl": by_hand,
        "c.jsonl": crew.training["c"].read_bytes(),
    }
    losses = read_loss_curves([run])
    assert [(each.label, each.stage, len(each.values), each.tokens[-1]) for each in losses] == [
        (label, stage, 40, last) for label in "abc" for stage, last in (("align", 2560), ("kd", 5120))
    ]
    report = compare([run], tmp_path / "out").report
    assert report.of(loss_curves) == losses
    titles = [figure.title for figure in training_views(report)]
    assert titles == ["Loss in stage 'align'", "Loss in stage 'kd'"]


def test_loss_curve_is_found_in_student_folder(tiny: Path, suite: Path, tmp_path: Path) -> None:
    student, run = tmp_path / "student", tmp_path / "run"
    shutil.copytree(tiny, student)
    generated = write_curve(student, 3.0).read_bytes()
    evaluate_quietly(suite=suite, checkpoints=[str(student)], out=run, phases=("build",))
    assert curves(run) == {"student.jsonl": generated}
    # A file without a lineage next to it is not ours.
    (student / "lineage.json").unlink()
    (student / "training.jsonl").write_text("no curve")
    evaluate_quietly(suite=suite, checkpoints=[str(student)], out=tmp_path / "other", phases=("build",))
    assert curves(tmp_path / "other") == {}


def test_loss_curve_travels_with_a_shard(crew: Any, suite: Path, tmp_path: Path) -> None:
    home, host, shard = tmp_path / "home", tmp_path / "host", tmp_path / "shard.tar.xz"
    evaluate_quietly(suite=suite, out=home, teacher="t", phases=("build",))
    shutil.copytree(home, host)
    crew.training = {"x/b": write_curve(tmp_path / "b", 3.0), "c": write_curve(tmp_path / "c", 5.0)}
    generated = crew.training["x/b"].read_bytes()
    answer = ["run", "--out", str(host), "--quiet", "--infer-only", "--checkpoint", "t", "x/b"]
    assert main([*answer, "--export-shard", str(shard)]) == 0
    # One that was not answered is not packed.
    evaluate_quietly(checkpoints=["c"], out=host, phases=("infer",), benchmarks=["pocket_facts"])
    assert curves(host) == {"x%2Fb.jsonl": generated, "c.jsonl": crew.training["c"].read_bytes()}
    crew.training = {}
    assert (
        main(["run", str(suite), "--out", str(home), "--quiet", "--score-only", "--merge-shards", str(shard)])
        == 0
    )
    assert curves(home) == {"x%2Fb.jsonl": generated}
    assert [each.label for each in compare([home], tmp_path / "out").report.of(loss_curves)] == ["x/b", "x/b"]
    # Where its weights are known by another name, it has that name.
    manifest = read_built(home)
    names = {"x/b": "mine"}
    renamed = tuple(replace(each, label=names.get(each.label, each.label)) for each in manifest.checkpoints)
    write_manifest(home, replace(manifest, checkpoints=renamed))
    shutil.rmtree(home / "training")
    merge_shards(home, [host])
    assert curves(home) == {"mine.jsonl": generated, "c.jsonl": (tmp_path / "c/training.jsonl").read_bytes()}


def test_shard_without_loss_curves(crew: Any, suite: Path, tmp_path: Path) -> None:
    home, host = tmp_path / "home", tmp_path / "host"
    evaluate_quietly(suite=suite, out=home, teacher="t", phases=("build",))
    shutil.copytree(home, host)
    evaluate_quietly(checkpoints=["b"], out=host, phases=("infer",))
    shard = export_shard(host, tmp_path / "shard.tar.xz")
    by_hand = write_curve(tmp_path / "b", 4.0).read_bytes()
    loss_curve_path(home, "b").parent.mkdir()
    loss_curve_path(home, "b").write_bytes(by_hand)
    assert merge_shards(home, [shard]) == {"b": 20}
    assert curves(home) == {"b.jsonl": by_hand}


def test_infer_only_copies_loss_curve(crew: Any, suite: Path, tmp_path: Path) -> None:
    run, student = tmp_path / "run", tmp_path / "students" / "gla"
    evaluate_quietly(suite=suite, checkpoints=[str(student)], out=run, phases=("build",))
    assert curves(run) == {}
    generated = write_curve(student, 3.0).read_bytes()
    evaluate_quietly(checkpoints=[str(student)], out=run, phases=("infer",))
    assert loss_curve_path(run, str(student)).read_bytes() == generated


def test_loss_curve_follows_label_change(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, names = tmp_path / "run", {}
    describe_checkpoints = crew.describe_checkpoints
    monkeypatch.setattr(
        "evalsuite.evaluation.checkpoints.describe_checkpoints",
        lambda *given, **options: [
            replace(each, label=names.get(each.path, each.label))
            for each in describe_checkpoints(*given, **options)
        ],
    )
    crew.training = {"a": write_curve(tmp_path / "a", 3.0)}
    evaluate_quietly(suite=suite, checkpoints=["a", "b", "c"], out=run, phases=("build",))
    by_hand = write_curve(tmp_path / "hand", 4.0).read_bytes()
    loss_curve_path(run, "b").write_bytes(by_hand)
    # b takes the name that a had, and c, which has no curve, the one that b had.
    names.update(a="one/a", b="a", c="b")
    evaluate_quietly(suite=suite, checkpoints=["a", "b", "c"], out=run, phases=("build",))
    assert curves(run) == {"one%2Fa.jsonl": crew.training["a"].read_bytes(), "a.jsonl": by_hand}


def test_incomplete_loss_curve_is_refused_early(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    crew.training = {"a": write_curve(tmp_path / "a", 3.0)}
    tear(crew.training["a"])
    said = r"a/training\.jsonl, line 80: not a training step .*; copy the checkpoint again, or delete"
    with pytest.raises(DataError, match=said):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run, teacher="t")
    assert not (run / "run.json").exists()
    evaluate_quietly(suite=suite, out=run, teacher="t", phases=("build",))
    with pytest.raises(DataError, match=said):
        evaluate_quietly(checkpoints=["a"], out=run, phases=("infer",))
    assert crew.computed == 0
    assert [each.label for each in read_built(run).checkpoints] == ["t"]
    crew.training["a"].write_bytes(b"")
    with pytest.raises(DataError, match=r"a/training\.jsonl: empty; copy the checkpoint again"):
        evaluate_quietly(checkpoints=["a"], out=run, phases=("infer",))


def test_shard_with_incomplete_loss_curve_merges_nothing(crew: Any, suite: Path, tmp_path: Path) -> None:
    home, host = tmp_path / "home", tmp_path / "host"
    evaluate_quietly(suite=suite, out=home, teacher="t", phases=("build",))
    shutil.copytree(home, host)
    crew.training = {"b": write_curve(tmp_path / "b", 3.0)}
    evaluate_quietly(checkpoints=["b"], out=host, phases=("infer",))
    tear(loss_curve_path(host, "b"))
    # What was answered is packed all the same: the machine may be gone before anybody reads an error.
    shard = export_shard(host, tmp_path / "shard.tar.xz")
    with pytest.raises(
        DataError, match=r"shard\.tar\.xz: training/b\.jsonl, line 80: .*; unpack the shard \(a folder"
    ):
        merge_shards(home, [shard])
    assert not (home / "responses").exists()
    assert curves(home) == {}
    loss_curve_path(host, "b").unlink()
    assert merge_shards(home, [host]) == {"b": 20}

"""A student's loss curve goes where its answers go: into the run, home in a piece, onto the page."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.distill.watch import training_rows
from evalsuite.evaluator import evaluate
from evalsuite.evaluator.layout import read_index, write_index
from evalsuite.evaluator.pieces import add, pack
from evalsuite.foundation import DataError
from evalsuite.reports import compare
from evalsuite.reports.training import curve_path, read_losses


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
    path.write_text("".join(json.dumps(row) + "\n" for row in training_rows(metrics, "me")))
    return path


def tear(path: Path) -> None:
    """Cut the file in the middle of its last line, which is the 80th."""
    path.write_bytes(path.read_bytes()[:-20])


def curves(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "training").glob("*")}


def test_a_run_has_the_curves_of_its_students_and_the_page_draws_them(
    crew: Any, suite: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    crew.training = {"a": write_curve(tmp_path / "a", 3.0), "c": write_curve(tmp_path / "c", 5.0)}
    by_hand = write_curve(tmp_path / "hand", 4.0).read_bytes()
    for label in ("a", "b"):
        curve_path(run, label).parent.mkdir(parents=True, exist_ok=True)
        curve_path(run, label).write_bytes(by_hand)
    evaluate(suite, ["a", "b"], run, teacher="t", quiet=True)
    evaluate(suite, ["c"], run, quiet=True)
    # A student's own curve stands above one that somebody put there.
    assert curves(run) == {
        "a.jsonl": crew.training["a"].read_bytes(),
        "b.jsonl": by_hand,
        "c.jsonl": crew.training["c"].read_bytes(),
    }
    losses = read_losses([run])
    assert [(each.label, each.stage, len(each.values), each.tokens[-1]) for each in losses] == [
        (label, stage, 40, last) for label in "abc" for stage, last in (("align", 2560), ("kd", 5120))
    ]
    assert compare([run], tmp_path / "out").report.losses == tuple(losses)
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(f"Loss of stage &#39;{stage}&#39;. a ends at " in page for stage in ("align", "kd"))


def test_the_folder_of_a_student_says_whether_it_has_a_curve(tiny: Path, suite: Path, tmp_path: Path) -> None:
    student, run = tmp_path / "student", tmp_path / "run"
    shutil.copytree(tiny, student)
    written = write_curve(student, 3.0).read_bytes()
    evaluate(suite, [str(student)], run, phases=("render",), quiet=True)
    assert curves(run) == {"student.jsonl": written}
    # What lies beside no lineage is somebody's data.
    (student / "lineage.json").unlink()
    (student / "training.jsonl").write_text("no curve")
    evaluate(suite, [str(student)], tmp_path / "other", phases=("render",), quiet=True)
    assert curves(tmp_path / "other") == {}


def test_a_curve_comes_home_with_the_answers(crew: Any, suite: Path, tmp_path: Path) -> None:
    home, host, piece = tmp_path / "home", tmp_path / "host", tmp_path / "piece.tar.xz"
    evaluate(suite, [], home, teacher="t", phases=("render",), quiet=True)
    shutil.copytree(home, host)
    crew.training = {"x/b": write_curve(tmp_path / "b", 3.0), "c": write_curve(tmp_path / "c", 5.0)}
    written = crew.training["x/b"].read_bytes()
    answer = ["run", "s", "--out", str(host), "--quiet", "--answer-only", "--checkpoint", "t", "x/b"]
    assert main([*answer, "--pack", str(piece)]) == 0
    # One that was not answered is not packed.
    evaluate("", ["c"], host, phases=("answer",), groups=[["pocket_facts"]], quiet=True)
    assert curves(host) == {"x%2Fb.jsonl": written, "c.jsonl": crew.training["c"].read_bytes()}
    crew.training = {}
    assert main(["run", "s", "--out", str(home), "--quiet", "--judge-only", "--add", str(piece)]) == 0
    assert curves(home) == {"x%2Fb.jsonl": written}
    assert [each.label for each in compare([home], tmp_path / "out").report.losses] == ["x/b", "x/b"]
    # Where its weights are known by another name, it has that name.
    index = read_index(home)
    names = {"x/b": "mine"}
    renamed = tuple(replace(each, label=names.get(each.label, each.label)) for each in index.checkpoints)
    write_index(home, replace(index, checkpoints=renamed))
    shutil.rmtree(home / "training")
    add(home, [host])
    assert curves(home) == {"mine.jsonl": written, "c.jsonl": (tmp_path / "c/training.jsonl").read_bytes()}


def test_a_piece_without_curves_is_a_piece(crew: Any, suite: Path, tmp_path: Path) -> None:
    home, host = tmp_path / "home", tmp_path / "host"
    evaluate(suite, [], home, teacher="t", phases=("render",), quiet=True)
    shutil.copytree(home, host)
    evaluate("", ["b"], host, phases=("answer",), quiet=True)
    piece = pack(host, tmp_path / "piece.tar.xz")
    by_hand = write_curve(tmp_path / "b", 4.0).read_bytes()
    curve_path(home, "b").parent.mkdir()
    curve_path(home, "b").write_bytes(by_hand)
    assert add(home, [piece]) == {"b": 20}
    assert curves(home) == {"b.jsonl": by_hand}


def test_answering_alone_brings_the_curve_of_a_student_that_was_rendered_without(
    crew: Any, suite: Path, tmp_path: Path
) -> None:
    run, student = tmp_path / "run", tmp_path / "students" / "gla"
    evaluate(suite, [str(student)], run, phases=("render",), quiet=True)
    assert curves(run) == {}
    written = write_curve(student, 3.0).read_bytes()
    evaluate("", [str(student)], run, phases=("answer",), quiet=True)
    assert curve_path(run, str(student)).read_bytes() == written


def test_a_curve_follows_its_student_to_another_label(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, names = tmp_path / "run", {}
    describe = crew.describe
    monkeypatch.setattr(
        "evalsuite.evaluator.checkpoints.describe",
        lambda *given, **options: [
            replace(each, label=names.get(each.path, each.label)) for each in describe(*given, **options)
        ],
    )
    crew.training = {"a": write_curve(tmp_path / "a", 3.0)}
    evaluate(suite, ["a", "b", "c"], run, phases=("render",), quiet=True)
    by_hand = write_curve(tmp_path / "hand", 4.0).read_bytes()
    curve_path(run, "b").write_bytes(by_hand)
    # b takes the name that a had, and c, which has no curve, the one that b had.
    names.update(a="one/a", b="a", c="b")
    evaluate(suite, ["a", "b", "c"], run, phases=("render",), quiet=True)
    assert curves(run) == {"one%2Fa.jsonl": crew.training["a"].read_bytes(), "a.jsonl": by_hand}


def test_a_curve_that_is_not_whole_is_refused_before_anything_is_asked(
    crew: Any, suite: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    crew.training = {"a": write_curve(tmp_path / "a", 3.0)}
    tear(crew.training["a"])
    said = r"a/training\.jsonl, line 80: not a step of a training .*; copy the checkpoint again, or delete"
    with pytest.raises(DataError, match=said):
        evaluate(suite, ["a"], run, teacher="t", quiet=True)
    assert not (run / "plan.yaml").exists()
    evaluate(suite, [], run, teacher="t", phases=("render",), quiet=True)
    with pytest.raises(DataError, match=said):
        evaluate("", ["a"], run, phases=("answer",), quiet=True)
    assert crew.computed == 0
    assert [each.label for each in read_index(run).checkpoints] == ["t"]
    crew.training["a"].write_bytes(b"")
    with pytest.raises(DataError, match=r"a/training\.jsonl: empty; copy the checkpoint again"):
        evaluate("", ["a"], run, phases=("answer",), quiet=True)


def test_a_piece_whose_curve_is_not_whole_adds_nothing(crew: Any, suite: Path, tmp_path: Path) -> None:
    home, host = tmp_path / "home", tmp_path / "host"
    evaluate(suite, [], home, teacher="t", phases=("render",), quiet=True)
    shutil.copytree(home, host)
    crew.training = {"b": write_curve(tmp_path / "b", 3.0)}
    evaluate("", ["b"], host, phases=("answer",), quiet=True)
    tear(curve_path(host, "b"))
    # What was answered is packed all the same: the machine may be gone before anybody reads an error.
    piece = pack(host, tmp_path / "piece.tar.xz")
    with pytest.raises(
        DataError, match=r"piece\.tar\.xz: training/b\.jsonl, line 80: not a step .*; unpack it \(a folder"
    ):
        add(home, [piece])
    assert not (home / "answers").exists()
    assert curves(home) == {}
    curve_path(host, "b").unlink()
    assert add(home, [host]) == {"b": 20}

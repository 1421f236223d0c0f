"""Loss curves of several runs: whose they are, once each, and lines that are none."""

import json
import shutil
from pathlib import Path

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import compare
from evalsuite.reports.measures.training import loss_curves
from evalsuite.reports.records.loss_curves import (
    label_of,
    loss_curve_path,
    parse_loss_curves,
    read_loss_curves,
)
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.page.test_sections import Sections


def put(run: Path, label: str, *losses: float) -> None:
    rows = [{"stage": "kd", "tokens": 64 * n, "loss": loss, "lr": 1e-3} for n, loss in enumerate(losses, 1)]
    loss_curve_path(run, label).parent.mkdir(parents=True, exist_ok=True)
    loss_curve_path(run, label).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("label", ["gla", "a/b/gla", "//gla", "../gla", "..", "50% gla", "a%2Fb", "x.y (Q8)"])
def test_label_and_file_name_round_trip(label: str, tmp_path: Path) -> None:
    path = loss_curve_path(tmp_path, label)
    assert path.resolve().parent == (tmp_path / "training").resolve()
    put(tmp_path, label, 2.0, 1.0)
    assert label_of(path) == label
    assert [(each.label, each.values) for each in read_loss_curves([tmp_path])] == [(label, (2.0, 1.0))]


def test_measurements_on_held_out_documents_are_read_and_drawn(small_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    for label, level in (("strong", 1.0), ("weak", 2.0)):
        put(run, label, 4.0, 3.0, 2.0, 1.5)
        path = loss_curve_path(run, label)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row, kl in zip(rows[1::2], (0.5, 0.25), strict=True):
            row |= {"validation_kl": level * kl, "validation_ppl": 20.0 * level}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    strong, weak = read_loss_curves([run])
    assert strong.validation == {
        "validation_kl": ((128, 0.5), (256, 0.25)),
        "validation_ppl": ((128, 20.0), (256, 20.0)),
    }
    # In one order, whatever strings hash to: exports are equal byte by byte.
    assert list(weak.validation) == ["validation_kl", "validation_ppl"]
    assert weak.validation["validation_kl"] == ((128, 1.0), (256, 0.5))
    figures = Sections(compare([run], tmp_path / "out", samples=False).page.read_text()).figures["training"]
    assert list(figures) == [
        "Loss in stage 'kd'",
        "Held-out KL(teacher ‖ student) in stage 'kd'",
        "Held-out perplexity in stage 'kd'",
    ]
    kl = figures["Held-out KL(teacher ‖ student) in stage 'kd'"]["data"]
    assert [(trace["name"], trace["x"], trace["y"]) for trace in kl] == [
        ("strong", [128, 256], [0.5, 0.25]),
        ("weak", [128, 256], [1, 0.5]),
    ]


def test_student_of_two_runs_has_one_curve(tmp_path: Path) -> None:
    def run(name: str, benchmark: str, students: dict[str, str]) -> Path:
        answerers = [
            SyntheticCheckpoint(label, lambda *_: 0.6, weights=weights) for label, weights in students.items()
        ]
        teacher = SyntheticCheckpoint("t", lambda *_: 0.7, "teacher")
        requested = [SyntheticBenchmark(benchmark, benchmark, "common_sense", 20)]
        return make_run(tmp_path / name, requested, [teacher, *answerers])

    first = run("first", "piqa", {"gla": "a" * 16, "kda": "b" * 16})
    second = run("second", "boolq", {"out/gla": "a" * 16, "kda": "c" * 16})
    put(first, "gla", 3.0, 1.0)
    put(second, "out/gla", 3.0, 1.0)
    put(first, "kda", 4.0, 2.0)
    put(second, "kda", 5.0, 2.0)
    for each in (first, second):
        put(each, "never evaluated", 6.0, 6.0)
    put(second, "gla", 7.0, 7.0)
    losses = compare([first, second], tmp_path / "out").report.of(loss_curves)
    assert [(each.label, each.values[0]) for each in losses] == [
        ("gla", 3.0),
        ("gla (second)", 7.0),
        ("kda (bbbbbb)", 4.0),
        ("kda (cccccc)", 5.0),
        ("never evaluated", 6.0),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"stage": "kd", "tokens": 64}',
        '{"stage": "kd", "tokens": 64, "loss": NaN}',
        '{"stage": "kd", "tokens": 64, "loss": 1, "validation_ppl": Infinity}',
        '{"stage": "kd", "tokens": 64, "loss": 1, "validation_kl": null}',
        '{"stage": "kd", "tokens": 1e999, "loss": 1}',
        '{"stage": "kd", "tokens": null, "loss": 1}',
        '["kd", 64, 1.0]',
        '{"stage": "kd", "tokens": 64, "lo',
        "",
        "\xff",
    ],
)
def test_invalid_line_is_refused_with_number(line: str) -> None:
    good = b'{"stage": "kd", "tokens": 32, "loss": 2.5}\n'
    with pytest.raises(DataError, match=r"^here, line 2: not a training step \("):
        parse_loss_curves(good + line.encode("latin-1") + b"\n", "gla", "here")


def test_last_line_without_newline() -> None:
    rows = b'{"stage": "kd", "tokens": 32, "loss": 2.5}\n{"stage": "kd", "tokens": 64, "loss": 1.5}'
    (losses,) = parse_loss_curves(rows, "gla", "here")
    assert (losses.tokens, losses.values) == ((32, 64), (2.5, 1.5))
    with pytest.raises(DataError, match="line 2"):
        parse_loss_curves(rows[:-1], "gla", "here")


def test_curves_of_students_that_are_not_selected_are_left_out(small_run: Path, tmp_path: Path) -> None:
    from shutil import copytree

    from evalsuite.reports.records.run_selection import RunSelection
    from evalsuite.reports.report import build_report

    run = copytree(small_run, tmp_path / "run")
    (run / "training").mkdir()
    for label in ("strong", "weak"):
        (run / "training" / f"{label}.jsonl").write_text('{"stage": "kd", "tokens": 32, "loss": 2.5}\n')
    report = build_report([run], RunSelection(checkpoints=("weak",)))
    assert [curve.label for curve in report.of(loss_curves)] == ["weak"]

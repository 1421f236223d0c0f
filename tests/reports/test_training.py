"""Loss curves of several runs: whose they are, once each, and lines that are none."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import compare
from evalsuite.reports.training import curve_path, label_of, parse_losses, read_losses


def put(run: Path, label: str, *losses: float) -> None:
    rows = [{"stage": "kd", "tokens": 64 * n, "loss": loss, "lr": 1e-3} for n, loss in enumerate(losses, 1)]
    curve_path(run, label).parent.mkdir(parents=True, exist_ok=True)
    curve_path(run, label).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("label", ["gla", "a/b/gla", "//gla", "../gla", "..", "50% gla", "a%2Fb", "x.y (Q8)"])
def test_every_label_has_one_file_in_the_folder(label: str, tmp_path: Path) -> None:
    path = curve_path(tmp_path, label)
    assert path.resolve().parent == (tmp_path / "training").resolve()
    put(tmp_path, label, 2.0, 1.0)
    assert label_of(path) == label
    assert [(each.label, each.values) for each in read_losses([tmp_path])] == [(label, (2.0, 1.0))]


def test_a_student_of_two_runs_has_one_curve_under_its_name_in_the_report(
    dice: SimpleNamespace, tmp_path: Path
) -> None:
    def run(name: str, benchmark: str, students: dict[str, str]) -> Path:
        answerers = [
            dice.Answerer(label, lambda *_: 0.6, weights=weights) for label, weights in students.items()
        ]
        teacher = dice.Answerer("t", lambda *_: 0.7, "teacher")
        asked = [dice.Asked(benchmark, benchmark, "common_sense", 20)]
        return dice.make_run(tmp_path / name, asked, [teacher, *answerers])

    first = run("first", "piqa", {"gla": "a" * 16, "kda": "b" * 16})
    second = run("second", "boolq", {"out/gla": "a" * 16, "kda": "c" * 16})
    put(first, "gla", 3.0, 1.0)
    put(second, "out/gla", 3.0, 1.0)
    put(first, "kda", 4.0, 2.0)
    put(second, "kda", 5.0, 2.0)
    for each in (first, second):
        put(each, "never asked", 6.0, 6.0)
    put(second, "gla", 7.0, 7.0)
    losses = compare([first, second], tmp_path / "out").report.losses
    assert [(each.label, each.values[0]) for each in losses] == [
        ("gla", 3.0),
        ("kda (bbbbbb)", 4.0),
        ("never asked", 6.0),
        ("gla", 7.0),
        ("kda (cccccc)", 5.0),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"stage": "kd", "tokens": 64}',
        '{"stage": "kd", "tokens": 64, "loss": NaN}',
        '{"stage": "kd", "tokens": 1e999, "loss": 1}',
        '{"stage": "kd", "tokens": null, "loss": 1}',
        '["kd", 64, 1.0]',
        '{"stage": "kd", "tokens": 64, "lo',
        "",
        "\xff",
    ],
)
def test_a_line_that_is_no_step_is_named(line: str) -> None:
    good = b'{"stage": "kd", "tokens": 32, "loss": 2.5}\n'
    with pytest.raises(DataError, match=r"^here, line 2: not a step of a training \("):
        parse_losses(good + line.encode("latin-1") + b"\n", "gla", "here")


def test_a_last_line_without_an_end_is_read_if_it_is_whole_and_refused_if_torn() -> None:
    rows = b'{"stage": "kd", "tokens": 32, "loss": 2.5}\n{"stage": "kd", "tokens": 64, "loss": 1.5}'
    (losses,) = parse_losses(rows, "gla", "here")
    assert (losses.tokens, losses.values) == ((32, 64), (2.5, 1.5))
    with pytest.raises(DataError, match="line 2"):
        parse_losses(rows[:-1], "gla", "here")

"""What changes no number: the order of runs, benchmarks and checkpoints, copies, names, and other runs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import write_text
from evalsuite.reports import RunSelection, policy_from_options, run_gate
from evalsuite.reports.exports import formats
from evalsuite.reports.exports.samples.folder import export_samples
from evalsuite.reports.records.efficiency import read_efficiency
from evalsuite.reports.records.loss_curves import LossCurve, read_loss_curves
from evalsuite.reports.records.score_files import open_score_file, read_rows
from evalsuite.reports.records.sidecars import read_doctor
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.records.test_loss_curves import put
from tests.reports.score_edits import write_unchecked

RULES = policy_from_options(min_recovery=0.6, max_gap=40)
Numbers = dict[tuple[Any, ...], Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of one teacher: other students, other benchmarks."""
    folder = tmp_path_factory.mktemp("runs")
    teacher = SyntheticCheckpoint("teacher", lambda *_: 0.8, "teacher")
    lineage = {"teacher": {"weights_id": teacher.weights_id}}

    def student(label: str, score: float) -> Any:
        return SyntheticCheckpoint(label, lambda *_: score, lineage=lineage)

    benchmarks = [
        SyntheticBenchmark("facts", "Facts", "knowledge", 80),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", 60, chance=0.5),
    ]
    models = [teacher, student("kda", 0.7), student("gla", 0.4)]
    return [
        make_run(folder / "one", benchmarks, models),
        make_run(folder / "two", benchmarks[:1], [teacher, student("mlstm", 0.6)]),
    ]


def numbers(report: Report, runs: list[Path], selection: RunSelection | None = None) -> Numbers:
    """Every score, average, gap, difference and verdict, by the weights that it is of."""
    name = [each.weights_id for each in report.checkpoints]
    found: Numbers = {}
    for row in report.scores:
        found["score", name[row.checkpoint], row.benchmark, row.protocol, row.context] = (
            row.score,
            row.recovery,
        )
    for average in report.averages:
        found["average", name[average.checkpoint], average.protocol, average.scope] = (
            average.score,
            average.recovery,
        )
    for gap in report.gaps:
        found["gap", name[gap.checkpoint], gap.benchmark] = gap.gap
    for each in run_gate(runs, RULES, selection=selection).results:
        who = next(e.weights_id for e in report.checkpoints if e.label == each.checkpoint)
        found["gate", who, each.name] = (each.outcome, each.point, each.low, each.high)
    return found


def measured(runs: list[Path], selection: RunSelection | None = None) -> Numbers:
    return numbers(build_report(runs, selection), runs, selection)


@pytest.fixture(scope="module")
def before(runs: list[Path]) -> Numbers:
    return measured(runs)


def reordered(run: Path) -> None:
    plan = read_manifest(run)
    write_manifest(
        run,
        replace(plan, checkpoints=plan.checkpoints[::-1], benchmarks=plan.benchmarks[::-1]),
    )


def saved_again(run: Path) -> None:
    """Rows in another order, under other row numbers."""
    for path in (run / "scores").glob("*.parquet"):
        write_unchecked(path, list(read_rows(path).values())[::-1])
        assert open_score_file(path)[1].rows


def renamed(run: Path) -> None:
    plan = read_manifest(run)
    called = [replace(each, label=f"z{each.label}", path=f"/else/{each.label}") for each in plan.checkpoints]
    write_manifest(run, replace(plan, checkpoints=tuple(called)))


def with_strangers(run: Path) -> None:
    """Files that are none of evalsuite's."""
    (run / "notes.txt").write_text("mine")
    (run / "scores" / "notes.txt").write_text("mine")


@pytest.mark.parametrize("change", [reordered, saved_again, renamed, with_strangers])
def test_a_changed_copy_has_the_same_numbers(
    runs: list[Path], before: Numbers, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    copies = [Path(shutil.copytree(run, tmp_path / f"other-{run.name}")) for run in runs]
    for copy in copies:
        change(copy)
    assert measured(copies) == before


def test_the_order_of_the_runs_changes_nothing(runs: list[Path], before: Numbers) -> None:
    assert measured([runs[1], *runs]) == before


def test_published_samples_have_the_same_numbers(runs: list[Path], before: Numbers, tmp_path: Path) -> None:
    export_samples(build_report(runs), tmp_path)
    assert measured([tmp_path / "samples", runs[1]]) == before


def unrelated(folder: Path, benchmark: str) -> Path:
    """A run of another teacher and student with the same labels."""
    models = [
        SyntheticCheckpoint("teacher", lambda *_: 0.9, "teacher", weights="aa" * 8),
        SyntheticCheckpoint("kda", lambda *_: 0.8, weights="bb" * 8),
    ]
    run: Path = make_run(folder, [SyntheticBenchmark(benchmark, benchmark.title(), "knowledge", 80)], models)
    return run


def test_another_run_changes_nothing(runs: list[Path], before: Numbers, tmp_path: Path) -> None:
    found = measured([unrelated(tmp_path / "unrelated", "facts"), *runs])
    # A run with more benchmarks is unmeasured without those that only the others have.
    assert {key: found[key] for key in before} == before
    assert {key[1] for key in found if key not in before} == {"aa" * 8, "bb" * 8}


def test_a_benchmark_of_an_unrelated_run_is_named(runs: list[Path], before: Numbers, tmp_path: Path) -> None:
    order = [*runs, unrelated(tmp_path / "unrelated", "elsewhere")]
    found = measured(order)
    assert all(found[key] == before[key] for key in before if key[0] in ("score", "gap"))
    changed = [each for each in run_gate(order, RULES).results if each.outcome == "unmeasured"]
    assert changed
    assert all("elsewhere" in each.why or "facts" in each.why.lower() for each in changed)


def test_another_engine_changes_nothing(runs: list[Path], before: Numbers, tmp_path: Path) -> None:
    """The first run again, under other fingerprints: without a declaration no row is shared."""
    again = tmp_path / "again"
    shutil.copytree(runs[0], again)
    for path in (again / "scores").glob("*.parquet"):
        rows = [row | {"fingerprint": f"f{row['weights_id']}"} for row in read_rows(path).values()]
        path.unlink()
        benchmark, protocol, _, _ = path.name.split(".")
        write_unchecked(path.with_name(f"{benchmark}.{protocol}.{rows[0]['fingerprint']}.parquet"), rows)
    report = build_report([*runs, again])
    assert [len(each.scored_as) for each in report.checkpoints] == [1] * 7
    first = {i for i, each in enumerate(report.checkpoints) if not each.scored_as[0].startswith("f")}
    for row in report.scores:
        if row.checkpoint in first:
            who = report.checkpoints[row.checkpoint].weights_id
            assert (row.score, row.recovery) == before["score", who, row.benchmark, row.protocol, row.context]


def test_a_removed_student_is_named_by_what_asks_for_it(runs: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs[0], tmp_path / "copy"))
    gla = next(each for each in read_manifest(copy).checkpoints if each.label == "gla")
    for path in (copy / "scores").glob("*.parquet"):
        if next(iter(read_rows(path, [1]).values()))["weights_id"] == gla.weights_id:
            path.unlink()
    verdict = run_gate([copy], RULES)
    assert verdict.exit_code == 3
    assert {each.checkpoint for each in verdict.results if each.outcome == "unmeasured"} == {"gla"}


def test_curves_of_one_label_stay_apart(tmp_path: Path) -> None:
    """A student that was not evaluated has the label of one that was, or of another run's."""
    for name, losses in (("a", (3.0, 2.0)), ("b", (9.0, 8.0)), ("c", (5.0, 4.0)), ("copy", (9.0, 8.0))):
        put(tmp_path / name, "gla", *losses)
    folders = [tmp_path / name for name in ("a", "b", "c", "copy")]

    def found(order: list[int]) -> dict[str, tuple[float, ...]]:
        labels = [{"gla": "gla"} if number == 0 else {} for number in order]
        curves: list[LossCurve] = read_loss_curves([folders[number] for number in order], labels)
        assert len({each.label for each in curves}) == len(curves)
        return {each.label: each.values for each in curves}

    assert found([0, 1, 2, 3]) == {"gla": (3.0, 2.0), "gla (b)": (9.0, 8.0), "gla (c)": (5.0, 4.0)}
    assert found([2, 1, 0]) == found([0, 1, 2])


def test_exports_of_labels_that_look_alike_stay_apart(tmp_path: Path) -> None:
    models = [
        SyntheticCheckpoint("teacher", lambda *_: 0.8, "teacher"),
        *(SyntheticCheckpoint(name, lambda *_: 0.5) for name in ("a b", "a-b", "A/b")),
    ]
    benchmark = SyntheticBenchmark("facts", "Facts", "knowledge", 40)
    run = make_run(tmp_path / "run", [benchmark], models)
    for name in ("model-card", "model-index"):
        files = formats.export([run], name, tmp_path / name).files
        assert len({str(path).casefold() for path in files}) == len(files) >= 3


def test_measurements_of_one_label_stay_apart(tmp_path: Path) -> None:
    """Two models that are called alike are two lines of the charts and two findings of the doctor."""
    for number, weights in enumerate(("a" * 16, "b" * 16)):
        run = tmp_path / str(number)
        row = {"schema": 2, "label": "gla", "weights_id": weights, "engine": "torch", "device": "cpu"}
        row |= {
            "dtype": "float32",
            "parameters": 1,
            "kind": "decode",
            "context": 64,
            "batch": 1,
            "status": "ok",
        }
        write_text(run / "efficiency.jsonl", json.dumps(row) + "\n")
        examined = {"label": "gla", "weights_id": weights, "checks": []}
        write_text(run / "doctor.json", json.dumps({"schema": 1, "checkpoints": [examined]}))
    runs = [tmp_path / "0", tmp_path / "1"]
    for order in (runs, runs[::-1]):
        for found in (read_efficiency(order), read_doctor(order)):
            assert {each.weights_id: each.label for each in found} == {
                "a" * 16: "gla (aaaaaa)",
                "b" * 16: "gla (bbbbbb)",
            }

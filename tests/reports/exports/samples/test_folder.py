"""Exported samples are a run folder: the same tables and verdicts as the runs, without texts and paths."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import DataError, RunFolderError
from evalsuite.reports import compare, run_gate
from evalsuite.reports.exports.samples.folder import export_samples
from evalsuite.reports.gate.policy import Policy
from evalsuite.reports.measures.agreement import agreements, tolerances
from evalsuite.reports.measures.efficiency import efficiency
from evalsuite.reports.measures.layers import selections
from evalsuite.reports.measures.letters import letters
from evalsuite.reports.measures.training import loss_curves
from evalsuite.reports.page.overview import meta
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.report import build_report
from evalsuite.reports.run import Benchmark, read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.exports.samples.conftest import HOME, SECRET, contents, part_of, samples_of, tables
from tests.reports.page_samples import sample_rows
from tests.reports.score_edits import edit_rows

TABLES = ["agreement", "distances", "efficiency", "gap", "leaderboard", "pairs"]
TABLES += ["paper_comparison", "probes", "recall", "scores", "students", "training"]


def test_tables_are_those_of_the_run(run: Path, samples: Path) -> None:
    expected = tables(run)
    assert list(expected) == TABLES
    assert tables(samples) == expected


def test_sections_without_a_table_are_those_of_the_run(run: Path, samples: Path) -> None:
    one, other = build_report([run]), build_report([samples])
    assert other.of(agreements) == one.of(agreements)
    assert one.of(agreements).by_scope
    for rows in (loss_curves, letters, tolerances):
        assert other.of(rows) == one.of(rows), rows
        assert one.of(rows), rows
    assert len(other.doctor) == len(one.doctor) > 0
    for rows in (efficiency, selections):
        assert len(other.of(rows)) == len(one.of(rows)) > 0
    assert other.environments[0]["device"] == "NVIDIA H200"


def test_merged_with_a_second_run_like_the_run_itself(
    run: Path, second: Path, samples: Path, both: Path
) -> None:
    expected = tables(run, second)
    assert expected["leaderboard"].count("\nkda,") > 1
    assert tables(samples, second) == expected
    assert tables(both) == expected
    assert len(list((both / "scores").iterdir())) == len(list((samples / "scores").iterdir()))


def test_page_grows_in_place(second: Path, samples: Path, both: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    shutil.copytree(samples, page / "samples")
    (page / "samples" / "scores" / "gone.generation.0123456789abcdef.parquet").write_bytes(b"")
    grown = samples_of(page / "samples", second, out=page, redacted=True)
    assert contents(grown) == contents(both)


def test_run_that_the_samples_have_already_changes_nothing(both: Path, second: Path, tmp_path: Path) -> None:
    assert contents(samples_of(both, second, out=tmp_path / "again", redacted=True)) == contents(both)
    assert len(json.loads((both / "environment.json").read_text())["runs"]) == 2
    assert "NVIDIA H200" in meta(build_report([both]))


def test_samples_stay_if_a_run_is_refused(second: Path, samples: Path, tmp_path: Path) -> None:
    shutil.copytree(samples, tmp_path / "samples")
    damaged = Path(shutil.copytree(second, tmp_path / "damaged"))
    for path in damaged.glob("scores/squad.*"):
        path.write_bytes(b"")
    report = build_report([tmp_path / "samples", second])
    merged = replace(report.tensor.merged, runs=(tmp_path / "samples", damaged))
    with pytest.raises(DataError, match=r"squad\.generation"):
        export_samples(replace(report, tensor=replace(report.tensor, merged=merged)), tmp_path)
    assert contents(tmp_path / "samples") == contents(samples)


def test_gate_gives_the_same_verdict(run: Path, samples: Path) -> None:
    rules = [
        {"metric": "recovery", "min": 0.9},
        {"metric": "gap", "max": 5},
        {"metric": "agreement", "protocol": "generation", "min": 0.5},
        {"metric": "kl", "max": 0.01},
        {"metric": "score", "benchmark": "niah_single_1", "context": 1024, "min": 0.5},
    ]
    policy = Policy(rules=rules)
    one, other = run_gate([run], policy), run_gate([samples], policy)
    assert other == one
    assert len({each.outcome for each in one.results}) > 1


def test_samples_of_samples_are_the_same(samples: Path, tmp_path: Path) -> None:
    assert contents(samples_of(samples, out=tmp_path, redacted=True)) == contents(samples)


def test_equal_runs_give_equal_bytes(make: Callable[..., Path], samples: Path, tmp_path: Path) -> None:
    again = make("teacher", "gla", "retnet")
    (again / "environment.json").write_bytes((samples / "environment.json").read_bytes())
    assert contents(samples_of(again, out=tmp_path, redacted=True)) == contents(samples)


def test_published_samples_have_no_text_of_the_dataset_and_no_absolute_path(
    run: Path, samples: Path, tmp_path: Path
) -> None:
    def texts(folder: Path) -> dict[str, str]:
        found = {}
        for name, data in contents(folder).items():
            if name.endswith(".parquet"):
                table = pq.read_table(folder / name)
                found[name] = json.dumps(table.to_pylist()) + str(table.schema.metadata)
            else:
                found[name] = data.decode()
        return found

    leaks = {name for name, text in texts(samples).items() if "/home" in text or SECRET in text}
    assert not leaks
    assert not {name for name, data in contents(samples).items() if HOME.encode() in data}
    whole = texts(samples_of(run, out=tmp_path))
    assert not {name for name, text in whole.items() if SECRET in text}
    told = {name.partition("/")[0] for name, text in whole.items() if HOME in text}
    assert told == {
        *("run.json", "environment.json", "doctor.json", "selection.json", "efficiency.jsonl", "scores")
    }
    assert any("engine.py: line 3: no response" in text for text in texts(samples).values())


def test_selected_checkpoints_only(run: Path, tmp_path: Path) -> None:
    run = part_of(run, tmp_path / "run", "arc_easy", "niah_single_1")
    folder = samples_of(run, out=tmp_path / "page", checkpoints=("gla",))
    assert [each.label for each in read_manifest(folder).checkpoints] == ["teacher", "gla"]
    assert tables(folder) == tables(run, selection=RunSelection(checkpoints=("gla",)))
    (left_out,) = (each for each in read_manifest(run).checkpoints if each.label == "retnet")
    for path in folder.rglob("*.parquet"):
        assert left_out.weights_id not in str(pq.read_table(path).to_pylist()), path
    assert [path.name for path in (folder / "training").iterdir()] == ["gla.jsonl"]


def test_teacher_of_the_selection_is_a_teacher_of_the_samples(run: Path, tmp_path: Path) -> None:
    run = part_of(run, tmp_path / "run", "arc_easy", "squad")
    export_samples(build_report([run], RunSelection(teacher="gla")), tmp_path / "page")
    expected = tables(run, selection=RunSelection(teacher="gla"))
    assert tables(tmp_path / "page" / "samples") == expected


def test_checkpoints_with_other_benchmarks_stay_so(run: Path, second: Path, tmp_path: Path) -> None:
    run = part_of(run, tmp_path / "run", "arc_easy", "piqa", "niah_single_1")
    fewer = part_of(second, tmp_path / "fewer", "arc_easy", "niah_single_1")
    plan = read_manifest(fewer)

    def reduced(benchmark: Benchmark) -> Benchmark:
        how = replace(benchmark.protocols["generation"], documents={512: 30})
        return replace(benchmark, contexts=(512,), protocols={"generation": how})

    kept = [reduced(each) if each.name == "niah_single_1" else each for each in plan.benchmarks]
    write_manifest(fewer, replace(plan, benchmarks=tuple(kept)))
    edit_rows(fewer, "niah_single_1", "generation", lambda _, row: row if row["context"] == 512 else None)
    expected = tables(run, fewer)
    assert "\nkda,".join(expected["scores"].split("\nkda,")[1:]).count("incomplete") == 0
    folder = samples_of(run, fewer, out=tmp_path / "page")
    assert {
        (each.benchmark, each.contexts, each.checkpoints) for each in read_manifest(folder).unplanned
    } == {
        ("piqa", (None,), ("kda",)),
        ("niah_single_1", (1024,), ("kda",)),
    }
    assert tables(folder) == expected
    assert contents(samples_of(folder, out=tmp_path / "again")) == contents(folder)


def test_runs_that_no_single_plan_describes_are_refused(run: Path, second: Path, tmp_path: Path) -> None:
    extended = tmp_path / "extended"
    shutil.copytree(second, extended)
    for folder, changes in ((extended, {"max_length": 4096}), (tmp_path / "short", {})):
        if not folder.exists():
            shutil.copytree(run, folder)
        plan = read_manifest(folder)
        checkpoints = [replace(each, positions=512) for each in plan.checkpoints]
        write_manifest(folder, replace(plan, checkpoints=tuple(checkpoints), **changes))
    with pytest.raises(DataError, match=r"different positions \(max_length\)"):
        samples_of(tmp_path / "short", extended, out=tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_student_that_would_change_its_teacher_is_refused(tmp_path: Path) -> None:
    checkpoint = SyntheticCheckpoint
    first = checkpoint("first", lambda *_: 0.9, "teacher")
    own = checkpoint("own", lambda *_: 0.8, lineage={"teacher": {"weights_id": first.weights_id}})
    models = [first, checkpoint("second", lambda *_: 0.9, "teacher"), own, checkpoint("any", lambda *_: 0.8)]
    benchmarks = [SyntheticBenchmark("facts", "Facts", "knowledge", 20)]
    made = make_run(tmp_path / "run", benchmarks, models)
    samples_of(made, out=tmp_path / "all")
    with pytest.raises(DataError, match="names no teacher of the runs"):
        samples_of(made, out=tmp_path / "some", checkpoints=("own", "any"))


def test_a_run_is_never_overwritten(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "samples")
    before = contents(tmp_path / "samples")
    with pytest.raises(RunFolderError, match="samples: holds a run, which exported samples would replace"):
        samples_of(run, out=tmp_path)
    assert contents(tmp_path / "samples") == before
    for path in (tmp_path / "samples" / "scores").iterdir():
        path.unlink()
    (tmp_path / "samples" / "responses").mkdir()
    with pytest.raises(RunFolderError, match="holds a run"):
        samples_of(run, out=tmp_path)


def test_page_of_samples_shows_the_responses(samples: Path, tmp_path: Path) -> None:
    page = compare([samples], tmp_path).page
    row = next(row for row in sample_rows(tmp_path) if row["cell"] == "niah_single_1.generation")
    assert "ANSWER" in row["responses"][0]["text"]
    assert "NVIDIA H200" in page.read_text()

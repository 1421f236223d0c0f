"""Two runs of one suite that fill every table of a report, and the samples that are exported of them."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.foundation import append_jsonl
from evalsuite.reports import measures
from evalsuite.reports.exports.redact import redact
from evalsuite.reports.exports.samples.folder import export_samples
from evalsuite.reports.records.distances import DISTANCE_FILE
from evalsuite.reports.records.loss_curves import loss_curve_path
from evalsuite.reports.records.probes import PROBE_FILE, SEGMENTS
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.report import build_report
from evalsuite.reports.run import read_manifest, write_environment, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import Row, edit_rows

SECRET = "Why is the sky blue?"
"""Text of the dataset, in the details that a scorer writes."""
HOME = "/home/someone/work"
"""Where the runs were made."""
SKILL = {"teacher": 0.9, "gla": 0.85, "retnet": 0.75, "kda": 0.8}


def tables(*runs: Path, selection: RunSelection | None = None) -> dict[str, str]:
    """Every table of the report of some runs, by name."""
    report = redact(build_report(list(runs), selection))
    written = (table for table in measures.tables() if table.is_written(report))
    return {table.name: table.csv(report) for table in sorted(written, key=lambda table: table.name)}


def samples_of(
    *runs: Path,
    out: Path,
    redacted: bool = False,
    checkpoints: tuple[str, ...] = (),
    same: tuple[str, ...] = (),
) -> Path:
    """The samples that `compare --export-samples` writes."""
    report = build_report(list(runs), RunSelection(checkpoints=checkpoints, same=same))
    export_samples(redact(report) if redacted else report, out, redacted=redacted)
    return out / "samples"


def part_of(run: Path, out: Path, *benchmarks: str) -> Path:
    """A copy of a run with some of its benchmarks."""
    copy = Path(shutil.copytree(run, out))
    plan = read_manifest(copy)
    kept = tuple(each for each in plan.benchmarks if each.name in benchmarks)
    write_manifest(copy, replace(plan, benchmarks=kept))
    for path in (copy / "scores").iterdir():
        if path.name.partition(".")[0] not in benchmarks:
            path.unlink()
    return copy


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a run of these checkpoints; its documents are always the same."""

    def made(*labels: str) -> Path:
        run: Path = tmp_path_factory.mktemp("-".join(labels)) / "run"
        benchmark = SyntheticBenchmark
        make_run(
            run,
            [
                benchmark("arc_easy", "ARC-Easy", "knowledge", 80, seeds=(0, 1)),
                benchmark("piqa", "PIQA", "common_sense", 80, 0.5, (), ("loglikelihood",), cluster_size=4),
                benchmark("hellaswag", "HellaSwag", "common_sense", 80),
                benchmark("niah_single_1", "S-NIAH-1", "recall", 30, 0.0, (512, 1024), ("generation",)),
                benchmark("squad", "SQuAD", "knowledge", 40, 0.0, (), ("generation",), continuous=True),
                benchmark("lm", "LM", "language_modeling", 40, None, (), ("loglikelihood",), perplexity=True),
            ],
            [_checkpoint(label) for label in labels],
        )
        for protocol in ("loglikelihood", "generation"):
            edit_rows(run, "arc_easy", protocol, _with_texts)
        edit_rows(run, "squad", "generation", _with_fractions)
        _write_sidecars(run)
        return run

    return made


@pytest.fixture(scope="session")
def run(make: Callable[..., Path]) -> Path:
    """A teacher and two students."""
    return make("teacher", "gla", "retnet")


@pytest.fixture(scope="session")
def second(make: Callable[..., Path]) -> Path:
    """The same teacher and another student."""
    return make("teacher", "kda")


@pytest.fixture(scope="session")
def samples(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published samples of the first run; tests only read them."""
    return samples_of(run, out=tmp_path_factory.mktemp("page"), redacted=True)


@pytest.fixture(scope="session")
def both(run: Path, second: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published samples of both runs; tests only read them."""
    return samples_of(run, second, out=tmp_path_factory.mktemp("both"), redacted=True)


def _checkpoint(label: str) -> Any:
    def truth(benchmark: str, protocol: str, context: int | None) -> float:
        return 4.0 - SKILL[label] if benchmark == "lm" else SKILL[label] - (context or 0) / 5000

    teacher = {"path": f"{HOME}/teacher", "command": f"evalsuite distill r --data {HOME}/data"}
    stages = [{"name": "kd", "objective": "kd", "tokens": 100}]
    lineage = {"recipe": {"name": "r", "hash": "h"}, "mixers": [label, label], "tokens": 100, "seed": 0}
    return SyntheticCheckpoint(
        label,
        truth,
        "teacher" if label == "teacher" else "student",
        lineage={} if label == "teacher" else {**lineage, "stages": stages, "teacher": teacher},
        bad_endings={"looped": 0.2} if label == "gla" else {},
    )


def _with_texts(number: int, row: Row) -> Row:
    """A second metric with a choice of its own, texts of the dataset, paths and long answers."""
    detail = row["detail"] | {"target": SECRET, "question": SECRET}
    if (number, row["checkpoint"]) == (1, "gla"):
        row |= {"outcome": "error", "error": f"{HOME}/engine.py: line 3: no response"}
    if row["protocol"] == "loglikelihood":
        picked = (row["choices"]["acc"] + number % 2) % 4
        values, choices = row["values"] | {"acc_norm": 1 / 3}, row["choices"] | {"acc_norm": picked}
        return row | {"detail": detail, "values": values, "choices": choices}
    # Answers that differ between checkpoints, in every third document behind the cut alone.
    answer = "Because of this, and of that. " * 10 + (row["checkpoint"] if number % 3 else "")
    return row | {"detail": detail | {"extracted": answer if number % 2 else detail["extracted"]}}


def _with_fractions(_: int, row: Row) -> Row:
    """Fractions of one student alone: the answers of the other checkpoints are still compared."""
    value = row["values"]["acc"]
    return row if row["checkpoint"] == "gla" else row | {"values": {"acc": float(value > 0.5)}}


def _write_sidecars(run: Path) -> None:
    """Every optional file that the reports read."""
    plan = read_manifest(run)
    checkpoints = [replace(each, path=f"{HOME}/students/{each.label}") for each in plan.checkpoints]
    write_manifest(run, replace(plan, checkpoints=tuple(checkpoints)))
    write_environment(run, {"data": f"{HOME}/data", "device": "NVIDIA H200", "of": run.parent.name})
    teacher, *students = plan.checkpoints
    check = {"name": "batched", "status": "warning", "text": f"see {HOME}/log.txt", "changed": 0.04}
    examined = {"label": students[0].label, "weights_id": students[0].weights_id, "checks": [check]}
    (run / "doctor.json").write_text(json.dumps({"schema": 1, "checkpoints": [examined]}))
    chosen = {"schema": 2, "selector": "ga_s2", "layers": [1], "details": {"data": f"{HOME}/data"}}
    (run / "selection.json").write_text(json.dumps(chosen))
    for student in students:
        cost = {"label": student.label, "weights_id": student.weights_id, "detail": f"{HOME}/trace.json"}
        model = {"engine": "torch", "device": "GPU", "dtype": "float32", "parameters": 1, "status": "failed"}
        shape = {"schema": 2, "kind": "decode", "context": 64, "batch": 1}
        append_jsonl(run / "efficiency.jsonl", [shape | cost | model])
        curve = loss_curve_path(run, student.label)
        for step in range(1, 4):
            line = {"stage": "kd", "tokens": 10 * step, "loss": 1 / step, "host": f"{HOME}"}
            append_jsonl(curve, [line | ({"validation_kl": 0.1 / step} if step > 1 else {})])
    DISTANCE_FILE.add(
        run,
        pd.DataFrame(
            {
                "weights_id": student.weights_id,
                "teacher": teacher.weights_id,
                "text": "answers",
                "source": "arc_easy",
                "doc_id": f"{document:016x}",
                "tokens": 4,
                "kl": 0.1 * (1 + document % 3),
                "agreement": 3,
                "teacher_nll": 1.0,
                "student_nll": 2.0,
            }
            for student in students
            for document in range(10)
        ),
    )
    PROBE_FILE.add(run, pd.DataFrame(row for each in students for row in _probes(each.weights_id)))


def _probes(weights_id: str) -> list[dict[str, Any]]:
    """One recurrent layer of one head while four needles are read."""
    return [
        {
            "weights_id": weights_id,
            "dtype": "float32",
            "benchmark": "niah_single_1",
            "context": 512,
            "doc_id": f"{document:016x}",
            "depth": 20.0 * document,
            "answer_tokens": 4,
            "answer_right": 4 if document % 2 else 2,
            "answer_logprob": -1.0,
            "layer": 0,
            "mixer": "gla",
            "head": 0,
            "segment": segment,
            "tokens": 20,
            "log_decay": -0.1,
            "slowest_log_decay": -0.01,
            "beta": math.nan,
            "write": 0.2,
            "norm": 5.0,
            "rank": 2.0 + document,
            "retained": math.nan if segment == "before" else 0.5,
            "readout": 0.1 if segment == "question" else math.nan,
        }
        for document in range(4)
        for segment in SEGMENTS
    ]

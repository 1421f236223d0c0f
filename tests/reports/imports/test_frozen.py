"""Logs of lm-eval and EvalScope on frozen rows: one document, benchmark and model across harnesses."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.cli.entry import main
from evalsuite.foundation import ConfigError, DataError
from evalsuite.imported_logs import import_as_runs
from evalsuite.reports import RunSelection
from evalsuite.reports.imports.frozen import marks_of
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.report import Report, build_report
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from tests.reports.imports.logs import LmEvalLog, Task, task

FIXTURES = Path(__file__).parent / "fixtures" / "evalscope"
QUESTIONS = [f"Item {i}?" for i in range(12)]
BOTH = RunSelection(teacher="big", same=("big", "small"))


def arc_row(number: int) -> dict[str, Any]:
    """The question that the stored logs of EvalScope have at this position."""
    texts = [f"{letter}{number}" for letter in "wxyz"]
    return {
        "id": str(number),
        "question": QUESTIONS[number],
        "choices": {"text": texts, "label": list("ABCD")},
        "answerKey": "ABCD"[number % 4],
    }


def mmlu_row(number: int) -> dict[str, Any]:
    subject = "anatomy" if number % 3 else "virology"
    question = f"Which of these is number {number} of {subject}?"
    return {"question": question, "subject": subject, "choices": list("wxyz"), "answer": number % 4}


def freeze(data: Path, place: str, rows: Sequence[dict[str, Any]]) -> Path:
    file = data / place
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(file)
    return data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Frozen rows of ARC-Easy, and GSM8K as far as the stored logs ask it."""
    sums = [{"question": f"Compute {i} plus {i}.", "answer": f"#### {2 * i}"} for i in range(12)]
    freeze(tmp_path / "data", "openai__gsm8k/main/test.parquet", sums)
    return freeze(tmp_path / "data", "allenai__ai2_arc/ARC-Easy/test.parquet", list(map(arc_row, range(12))))


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Log-likelihood by lm-eval and generation by EvalScope, of two models."""
    for seed, (model, skill) in enumerate({"org/big": 6.0, "org/small": 2.0}.items()):
        write(tmp_path / "lm-eval", model, arc_easy=answers(seed, QUESTIONS, skill))
    shutil.copytree(FIXTURES, tmp_path / "evalscope")
    return [tmp_path / "lm-eval", tmp_path / "evalscope"]


def answers(seed: int, questions: Sequence[str], skill: float = 2.0) -> Task:
    """Answers to these questions, drawn with a seed."""
    return replace(task(seed, len(questions), skill=skill), documents=questions)


def write(folder: Path, model: str, **tasks: Task) -> Path:
    return LmEvalLog(model, tasks).write(folder)


def imported(logs: Sequence[Path], data: Path | None, out: Path) -> list[Path]:
    formats = ["evalscope" if log.name == "evalscope" else "lm-eval" for log in logs]
    return import_as_runs(list(zip(formats, logs, strict=True)), out, data=data)


def gap_documents(report: Report) -> dict[str, int]:
    return {row.benchmark: row.documents for row in report.gaps}


def test_two_harnesses_share_documents_benchmarks_and_models(
    logs: list[Path], data: Path, tmp_path: Path
) -> None:
    runs = imported(logs, data, tmp_path / "runs")
    report = build_report(runs, BOTH)
    assert [each.label for each in report.checkpoints] == ["big", "small"]
    assert [each.name for each in report.benchmarks] == ["arc_easy", "gsm8k"]
    assert gap_documents(report) == {"all": 12, "arc_easy": 12}
    ours = {each.doc_id for each in documents(load_benchmark("arc_easy"), data_dir=data)}
    for run, protocol in ((runs[0], "loglikelihood"), (runs[2], "generation")):
        assert set(read_run_scores(run, "arc_easy", protocol)["doc_id"]) == ours


def test_without_data_harnesses_have_documents_of_their_own(logs: list[Path], tmp_path: Path) -> None:
    report = build_report(imported(logs, None, tmp_path / "runs"), BOTH)
    assert [each.name for each in report.benchmarks] == ["arc_easy", "arc.ARC-Easy", "gsm8k"]
    assert not report.gaps


def test_a_log_of_fewer_documents_pairs_on_those(logs: list[Path], data: Path, tmp_path: Path) -> None:
    shutil.rmtree(logs[0])
    for seed, model in enumerate(("big", "small")):
        write(logs[0], model, arc_easy=answers(seed, QUESTIONS[:7]))
    assert gap_documents(build_report(imported(logs, data, tmp_path / "runs"), BOTH))["arc_easy"] == 7


def test_subjects_become_their_benchmark(tmp_path: Path) -> None:
    rows = list(map(mmlu_row, range(30)))
    data = freeze(tmp_path / "data", "cais__mmlu/all/test.parquet", rows)
    by_subject = {
        f"mmlu_{name}": [row["question"] for row in rows if row["subject"] == name]
        for name in ("anatomy", "virology")
    }
    tasks = {name: answers(1, texts) for name, texts in by_subject.items()}
    (run,) = imported([write(tmp_path / "lm-eval", "big", **tasks)], data, tmp_path / "runs")
    scores = read_run_scores(run, "mmlu", "loglikelihood")
    ours = {each.doc_id: each.cluster for each in documents(load_benchmark("mmlu"), data_dir=data)}
    assert dict(zip(scores["doc_id"], scores["cluster"], strict=True)) == ours


def _shift(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*rows[1:], rows[0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:10], "document 10 of 'arc_easy', but the frozen data of 'arc_easy' have 10 rows"),
        (_shift, "document 0 of 'arc_easy' has another text than row 0"),
    ],
)
def test_other_frozen_rows_are_refused(
    logs: list[Path], data: Path, tmp_path: Path, change: Callable[[list[Any]], list[Any]], message: str
) -> None:
    rows = [dict(arc_row(i), question=f"Which one is the {i}th of them?") for i in range(12)]
    shutil.rmtree(logs[0])
    write(logs[0], "big", arc_easy=answers(1, [row["question"] for row in rows]))
    freeze(data, "allenai__ai2_arc/ARC-Easy/test.parquet", change(rows))
    with pytest.raises(DataError, match=message):
        imported(logs[:1], data, tmp_path / "runs")


def test_data_that_are_not_frozen_are_named(logs: list[Path], data: Path, tmp_path: Path) -> None:
    shutil.rmtree(data / "openai__gsm8k")
    with pytest.raises(DataError, match=r"'gsm8k' of EvalScope is evalsuite's 'gsm8k': .*no such file"):
        imported(logs, data, tmp_path / "runs")


def test_two_harnesses_cannot_claim_one_cell(logs: list[Path], data: Path, tmp_path: Path) -> None:
    log = LmEvalLog("big", {"gsm8k": answers(1, [f"Compute {i} plus {i}." for i in range(12)])})
    log.results["configs"]["gsm8k"]["output_type"] = "generate_until"
    with pytest.raises(DataError, match=r"'gsm8k' has harness '.*', but '.*' in .*: these scores cannot be"):
        imported([log.write(tmp_path / "other"), logs[1]], data, tmp_path / "runs")


def test_a_name_of_one_harness_is_declared_for_one_model_of_it(data: Path, tmp_path: Path) -> None:
    """Two logs of lm-eval may call a teacher and a student the same."""
    runs = []
    for seed, folder in enumerate(("teacher/final", "kda/final")):
        log = write(tmp_path / f"log-{seed}", folder, arc_easy=answers(seed, QUESTIONS))
        runs += imported([log], data, tmp_path / f"run-{seed}")
    with pytest.raises(ConfigError, match="have different weights; --same 'final=NAME,NAME'"):
        build_report(runs, RunSelection(same=("final",)))


def test_two_logs_of_one_declared_model_cannot_claim_one_cell(data: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("org/big", "org/big-again")):
        write(tmp_path / "log", name, arc_easy=answers(seed, QUESTIONS))
    runs = imported([tmp_path / "log"], data, tmp_path / "runs")
    with pytest.raises(DataError, match="arc_easy: two of what --same declares to be 'big' have"):
        build_report(runs, RunSelection(same=("big=org/big,org/big-again",)))


def test_a_teacher_under_two_harnesses_is_to_be_declared(
    logs: list[Path], data: Path, tmp_path: Path
) -> None:
    runs = imported(logs, data, tmp_path / "runs")
    named = r"'big \(lm-eval\)' \(org/big\), 'big \(EvalScope\)' .*declare them one model with --same 'big'"
    with pytest.raises(ConfigError, match=named):
        build_report(runs, RunSelection(teacher="big"))


def test_the_gate_reads_the_gap_of_two_harnesses(
    logs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--teacher",
        "big",
        "--same",
        "big",
        "small",
        "--max-gap",
        "100",
        "--out",
        str(tmp_path / "gate"),
    ]
    assert main(["gate", *map(str, logs), *options, "--data", str(data)]) == 0
    assert main(["gate", *map(str, logs), *options]) == 3
    assert "are paired by document with --data only" in capsys.readouterr().err


def test_published_pages_pair_harnesses_too(logs: list[Path], data: Path, tmp_path: Path) -> None:
    given = ["--teacher", "big", "--same", "big", "small", "--data", str(data), "--redact"]
    assert main(["compare", *map(str, logs), *given, "--out", str(tmp_path / "page")]) == 0
    assert "arc_easy" in (tmp_path / "page" / "gap.csv").read_text()
    assert QUESTIONS[3] not in (tmp_path / "page" / "index.html").read_text()


def test_rows_are_marked_by_what_no_other_row_has() -> None:
    rows = [{"subject": "law", "question": f"Which one is number {i}?", "answer": i} for i in range(3)]
    assert marks_of(rows) == [(frozenset({f"snumber{i}"}),) for i in range(3)]
    twice = [{"question": text} for text in ("The same?", "The same?", "No other.")]
    assert marks_of(twice) == [(frozenset({text}),) for text in ("thesame", "thesame", "noother")]

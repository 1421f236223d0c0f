"""Logs of Every Eval Ever 0.3.0."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import RunSelection
from evalsuite.reports.imports import find_importer, import_logs
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import Report, build_report
from tests.reports.imports.logs import EveryEvalEverLog

BIG = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
SMALL = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0]


def report_of(tmp_path: Path, *logs: EveryEvalEverLog) -> Report:
    paths = [log.write(tmp_path / log.model) for log in logs]
    assert {find_importer(path) for path in paths} == {"every-eval-ever"}
    runs = import_logs([("every-eval-ever", path) for path in paths], tmp_path / "imported")
    return build_report(runs, RunSelection(teacher="big"))


def test_scores_are_those_of_the_aggregate(tmp_path: Path) -> None:
    log = EveryEvalEverLog("big", BIG)
    (run,) = import_logs([("every-eval-ever", log.write(tmp_path / "log"))], tmp_path / "imported")
    table = score_table(run)
    (expected,) = (each["score_details"]["score"] for each in log.aggregate["evaluation_results"])
    assert table[["metric", "score"]].to_numpy().tolist() == [["accuracy", expected]]


def test_two_logs_are_paired(tmp_path: Path) -> None:
    report = report_of(tmp_path, EveryEvalEverLog("big", BIG), EveryEvalEverLog("small", SMALL))
    (cell,) = report.tensor.cells
    assert sorted(map(tuple, cell.values[:, 0].T.tolist())) == sorted(zip(BIG, SMALL, strict=True))


def test_two_metrics_of_a_document_are_one_row(tmp_path: Path) -> None:
    log = EveryEvalEverLog("big", BIG)
    (result,) = log.aggregate["evaluation_results"]
    log.aggregate["evaluation_results"].append(
        result
        | {
            "evaluation_result_id": "f1",
            "metric_config": {"metric_id": "f1", "lower_is_better": False},
            "score_details": {"score": 0.5},
        }
    )
    log.rows += [
        row | {"evaluation_result_id": "f1", "evaluation": {"score": 0.5, "is_correct": False}}
        for row in log.rows
    ]
    (run,) = import_logs([("every-eval-ever", log.write(tmp_path / "log"))], tmp_path / "imported")
    table = score_table(run)
    assert dict(zip(table["metric"], table["score"], strict=True)) == {"accuracy": 0.75, "f1": 0.5}
    assert set(table["documents"]) == {8}


def test_documents_without_text_are_paired_by_hash(tmp_path: Path) -> None:
    logs = [EveryEvalEverLog("big", BIG), EveryEvalEverLog("small", SMALL)]
    for log in logs:
        for number, row in enumerate(log.rows):
            row["input"]["raw"] = ""
            row["sample_hash"] = f"{number:064x}"
    (cell,) = report_of(tmp_path, *logs).tensor.cells
    assert len(cell.documents) == 8


def test_other_prompts_are_not_measured(tmp_path: Path) -> None:
    small = EveryEvalEverLog("small", SMALL)
    small.rows[0]["input"]["formatted"] = "<|user|>document 0"
    report = report_of(tmp_path, EveryEvalEverLog("big", BIG), small)
    assert [each.documents for each in report.tensor.incomplete] == [7]


def test_a_score_that_is_no_number_is_an_error_of_its_document(tmp_path: Path) -> None:
    log = EveryEvalEverLog("big", BIG)
    log.rows[1]["evaluation"]["score"] = float("nan")
    log.rows[2]["metadata"] = {"choices": "four", "seed": "²", "choice": "9" * 5000}
    (run,) = import_logs([("every-eval-ever", log.write(tmp_path / "log"))], tmp_path / "imported")
    table = score_table(run)
    assert table[["documents", "error"]].to_numpy().tolist() == [[8, 1]]


def old_schema(log: EveryEvalEverLog) -> None:
    log.aggregate["schema_version"] = "0.2.2"


def old_samples(log: EveryEvalEverLog) -> None:
    log.rows[0]["schema_version"] = "0.2.2"


def no_identity(log: EveryEvalEverLog) -> None:
    log.rows[2]["input"]["raw"] = ""


def repeated(log: EveryEvalEverLog) -> None:
    log.rows.append(log.rows[1])


def other_evaluation(log: EveryEvalEverLog) -> None:
    log.rows[1]["evaluation_id"] = "another"


def unknown_result(log: EveryEvalEverLog) -> None:
    log.rows[1]["evaluation_name"] = "<script>"


def lower_is_better(log: EveryEvalEverLog) -> None:
    log.aggregate["evaluation_results"][0]["metric_config"]["lower_is_better"] = True


def no_score(log: EveryEvalEverLog) -> None:
    log.rows[1]["evaluation"]["score"] = None


def no_rows(log: EveryEvalEverLog) -> None:
    log.rows.clear()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (old_schema, r"'schema_version' = '0.2.2'; evalsuite reads 0.3.0"),
        (old_samples, r"line 1: 'schema_version' = '0.2.2'"),
        (no_identity, r"line 3: neither 'input.raw' nor 'sample_hash'.*cannot be paired"),
        (repeated, r"line 9: sample '1' has two records of 'accuracy', the other in .*line 2"),
        (other_evaluation, r"line 2: 'evaluation_id' = 'another'.*belong to another file"),
        (unknown_result, r"line 2: 'evaluation_name' = '<script>' is none of questions"),
        (lower_is_better, r"'lower_is_better' = True; only scores where higher is better"),
        (no_score, r"line 2: 'evaluation': 'score' = None; expected a finite number"),
        (no_rows, r"no samples of 'questions'"),
    ],
)
def test_bad_logs_are_refused(
    tmp_path: Path, damage: Callable[[EveryEvalEverLog], None], message: str
) -> None:
    log = EveryEvalEverLog("big", BIG)
    damage(log)
    with pytest.raises(DataError, match=message):
        import_logs([("every-eval-ever", log.write(tmp_path / "log"))], tmp_path / "imported")


def test_an_aggregate_without_samples_is_refused(tmp_path: Path) -> None:
    path = EveryEvalEverLog("big", BIG).write(tmp_path / "log")
    next(path.glob("*_samples.jsonl")).unlink()
    with pytest.raises(DataError, match=r"no samples of .*paired by document"):
        import_logs([("every-eval-ever", path)], tmp_path / "imported")

"""Logs that EvalScope 1.14.1 and inspect_ai 0.3.285 wrote, of two stub models on twelve documents each."""

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.foundation import DataError, MissingDependencyError
from evalsuite.reports import RunSelection
from evalsuite.reports.imports import find_importer, import_logs
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import Report, build_report

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of the stored logs, to change."""
    shutil.copytree(FIXTURES, tmp_path / "logs")
    return tmp_path / "logs"


def report_of(kind: str, *paths: Path) -> Report:
    runs = import_logs([(kind, path) for path in paths], paths[0].parents[1] / "imported")
    return build_report(runs, RunSelection(teacher="big"))


def scores_of(run: Path) -> dict[str, float]:
    table = score_table(run)
    return table[table["main"]].groupby("benchmark")["score"].mean().to_dict()


# EvalScope


def test_scores_are_those_of_evalscope(stored: Path) -> None:
    for name in ("big", "small"):
        assert find_importer(stored / "evalscope" / name) == "evalscope"
        (run,) = import_logs([("evalscope", stored / "evalscope" / name)], stored / name)
        reports = [
            json.loads(file.read_text()) for file in (stored / "evalscope" / name / "reports").rglob("*.json")
        ]
        expected = {each["dataset_name"]: each["metrics"][0]["score"] for each in reports}
        found = scores_of(run)
        # EvalScope rounds its averages to four digits.
        assert round(found["arc.ARC-Easy"], 4) == expected["arc"]
        assert round(found["gsm8k"], 4) == expected["gsm8k"]


def test_reviews_of_evalscope_are_paired(stored: Path) -> None:
    report = report_of("evalscope", stored / "evalscope" / "big", stored / "evalscope" / "small")
    assert [each.name for each in report.benchmarks] == ["arc.ARC-Easy", "gsm8k"]
    assert [len(cell.documents) for cell in report.tensor.cells] == [12, 12]
    assert not report.tensor.incomplete
    assert len(report.pairs) == 1


def edit_reviews(stored: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    path = stored / "evalscope" / "small" / "reviews" / "small" / "arc_ARC-Easy.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_other_prompts_of_evalscope_are_not_measured(stored: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["messages"][0]["content"] += " Think."

    edit_reviews(stored, change)
    report = report_of("evalscope", stored / "evalscope" / "big", stored / "evalscope" / "small")
    assert [(each.benchmark, each.documents) for each in report.tensor.incomplete] == [("arc.ARC-Easy", 11)]
    assert any("1 have other prompts" in text for text in report.warnings)


def test_a_choice_that_evalscope_guessed_is_no_answer(stored: Path) -> None:
    """The scores remain EvalScope's: of six guesses the same ones are right as before."""
    responses = [
        "Certainly not Bob",
        "The answer is C. Note: A is no option",
        "ANSWER: D",
        "(A)",
        "none",
        "D",
    ]
    extracted = ["B", "A", "D", "A", "", "D"]

    def change(rows: list[dict[str, Any]]) -> None:
        for row, response, answer in zip(rows, responses, extracted, strict=False):
            row["sample_score"]["score"] |= {"prediction": response, "extracted_prediction": answer}

    path = stored / "evalscope" / "small"
    (before,) = import_logs([("evalscope", path)], stored / "before")
    edit_reviews(stored, change)
    (run,) = import_logs([("evalscope", path)], stored / "out")
    frame = read_run_scores(run, "arc.ARC-Easy", "generation")
    counts = frame["outcome"].value_counts()
    assert (counts["guessed"], counts["extraction_failed"], counts["ok"]) == (2, 1, 9)
    assert scores_of(run) == scores_of(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.append(rows[2]), "document 2 has two reviews of generation 0"),
        (lambda rows: rows.clear(), "no reviews"),
        (lambda rows: rows[1].pop("messages"), "line 2: 'messages' is missing"),
        (lambda rows: rows[1]["sample_score"].pop("score"), "line 2: 'sample_score': 'score' is missing"),
        (
            lambda rows: rows[1]["sample_score"]["score"].update(value={"accuracy": "<b>1</b>"}),
            "'accuracy' = '<b>1</b>'; expected a finite number",
        ),
    ],
)
def test_bad_reviews_are_refused(
    stored: Path, change: Callable[[list[dict[str, Any]]], object], message: str
) -> None:
    edit_reviews(stored, change)
    with pytest.raises(DataError, match=message):
        import_logs([("evalscope", stored / "evalscope" / "small")], stored / "out")


def test_failed_reviews_are_errors(stored: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["sample_score"]["score"] |= {"status": "error", "value": {}}

    edit_reviews(stored, change)
    # The first review was right: EvalScope would have reported one less.
    report = stored / "evalscope" / "small" / "reports" / "small" / "arc.json"
    report.write_text(report.read_text().replace('"score": 0.5,', '"score": 0.4167,'))
    (run,) = import_logs([("evalscope", stored / "evalscope" / "small")], stored / "out")
    table = score_table(run)
    assert table[table["benchmark"] == "arc.ARC-Easy"]["error"].tolist() == [1]


def test_scores_that_are_no_numbers_are_errors_of_their_documents(stored: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        # The second review was wrong, so that the average over the others is 6 of 11.
        rows[1]["sample_score"]["score"]["value"]["accuracy"] = float("nan")

    edit_reviews(stored, change)
    log = edit_log(stored, lambda log: log["samples"][0]["scores"]["choice"].update(value=float("nan")))
    for source in (("evalscope", stored / "evalscope" / "small"), ("inspect", log)):
        (run,) = import_logs([source], stored / source[0] / "out")
        assert score_table(run)["error"].sum() == 1


def test_another_version_of_evalscope_is_refused(stored: Path) -> None:
    path = stored / "evalscope" / "small" / "configs" / "task_config.yaml"
    config = yaml.safe_load(path.read_text())
    del config["evalscope_version"]
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(DataError, match=r"'evalscope_version' is missing.*EvalScope 1\.14"):
        import_logs([("evalscope", stored / "evalscope" / "small")], stored / "out")


def test_an_unfinished_evaluation_of_evalscope_is_refused(stored: Path) -> None:
    (stored / "evalscope" / "small" / "reports" / "small" / "gsm8k.json").unlink()
    with pytest.raises(DataError, match=r"gsm8k_main.jsonl: reports/ has no report of this dataset"):
        import_logs([("evalscope", stored / "evalscope" / "small")], stored / "out")


# Inspect


def logs_of(stored: Path, name: str) -> list[Path]:
    return sorted((stored / "inspect").glob(f"{name}_*.json"))


def test_scores_are_those_of_inspect(stored: Path) -> None:
    for path in logs_of(stored, "big") + logs_of(stored, "small"):
        assert find_importer(path) == "inspect"
        (run,) = import_logs([("inspect", path)], stored / "out")
        log = json.loads(path.read_text())
        (score,) = log["results"]["scores"]
        assert scores_of(run) == {log["eval"]["task"]: score["metrics"]["accuracy"]["value"]}


def test_logs_of_inspect_are_paired_over_epochs(stored: Path) -> None:
    report = report_of("inspect", *logs_of(stored, "big"), *logs_of(stored, "small"))
    assert [(cell.benchmark.name, cell.values.shape) for cell in report.tensor.cells] == [
        ("letters", (2, 1, 12)),
        ("sums", (2, 2, 12)),
    ]
    assert not report.tensor.incomplete


@pytest.mark.parametrize("compression", ["stored", "deflated", "zstandard"])
def test_an_archive_is_read_like_its_json(stored: Path, compression: str) -> None:
    method = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED, "zstandard": 93}[compression]
    if compression == "zstandard" and not hasattr(zipfile, "ZIP_ZSTANDARD"):
        pytest.importorskip("zipfile_zstd", reason="evalsuite[import] is not installed")
    path = stored / "inspect" / "big_letters.json"
    log = json.loads(path.read_text())
    archive = stored / "inspect" / "big_letters.eval"
    with zipfile.ZipFile(archive, "w", method) as file:
        for sample in log.pop("samples"):
            file.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        file.writestr("header.json", json.dumps(log))
    assert find_importer(archive) == "inspect"
    (one,), (other,) = (import_logs([("inspect", each)], stored / each.suffix) for each in (path, archive))
    assert score_table(one).equals(score_table(other))


def edit_log(stored: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = stored / "inspect" / "small_letters.json"
    log = json.loads(path.read_text())
    change(log)
    path.write_text(json.dumps(log))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: log.update(version=1), "'version' = 1; evalsuite reads log version 2"),
        (lambda log: log.pop("samples"), "no samples; evaluate again with log_samples"),
        (lambda log: log["samples"].append(log["samples"][0]), "sample q0 of epoch 1 is there twice"),
        (lambda log: log["samples"][0].update(scores={}), "sample 1: 'scores' is empty"),
        (
            lambda log: log["samples"][0]["scores"]["choice"].update(value="=cmd()"),
            r"'value' = '=cmd\(\)'; expected C, I, P, N or a number",
        ),
        (lambda log: log["samples"][0].update(messages=[]), "'messages' holds no prompt"),
        (lambda log: log["eval"].update(task_version=7), "has task version '7', but '0'"),
        (lambda log: log["plan"].update(config={"temperature": 1.0}), "has sampling"),
    ],
)
def test_bad_logs_of_inspect_are_refused(
    stored: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = edit_log(stored, change)
    with pytest.raises(DataError, match=message):
        import_logs([("inspect", stored / "inspect" / "big_letters.json"), ("inspect", path)], stored / "out")


def test_lost_samples_of_inspect_are_refused(stored: Path) -> None:
    path = edit_log(stored, lambda log: log["samples"].pop())
    with pytest.raises(DataError, match=r"small_letters.json: 11 samples, but the log counts 12"):
        import_logs([("inspect", path)], stored / "out")


def test_an_evaluation_by_inspect_that_did_not_finish_is_refused(stored: Path) -> None:
    path = edit_log(stored, lambda log: log.update(status="cancelled"))
    with pytest.raises(DataError, match=r"'status' = 'cancelled': the evaluation did not finish"):
        import_logs([("inspect", path)], stored / "out")


def test_failed_samples_of_inspect_are_errors(stored: Path) -> None:
    path = edit_log(stored, lambda log: log["samples"][0].update(error={"message": "out of memory"}))
    report = report_of("inspect", stored / "inspect" / "big_letters.json", path)
    assert sum(report.tensor.errors.values()) == 1


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library reads Zstandard")
def test_zstandard_without_its_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", "{}")
    # The compression method stands in the local and in the central header of a member.
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x03\x04") + 8] = content[content.index(b"PK\x01\x02") + 10] = 93
    path.write_bytes(content)
    monkeypatch.setitem(sys.modules, "zipfile_zstd", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'evalsuite\[import\]', or convert"):
        import_logs([("inspect", path)], tmp_path / "out")


@pytest.mark.parametrize("content", [b"PK\x03\x04 torn", b"", b"<html>"])
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.eval"
    path.write_bytes(content)
    assert find_importer(path) == "inspect"
    with pytest.raises(DataError, match=r"log.eval: not a readable archive of Inspect"):
        import_logs([("inspect", path)], tmp_path / "out")


def test_an_unfinished_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("_journal/start.json", "{}")
    with pytest.raises(DataError, match=r"no header.json: the evaluation did not finish"):
        import_logs([("inspect", path)], tmp_path / "out")

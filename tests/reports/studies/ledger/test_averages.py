"""Averages of lm-eval's logs without samples: what is read, left out and refused, and their bounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import EvalsuiteError
from evalsuite.reports.statistics.intervals import normal_quantile
from evalsuite.reports.studies.ledger.__main__ import main
from evalsuite.reports.studies.ledger.averages import read_averages
from evalsuite.reports.studies.ledger.recoveries import LEVEL, ledger_rows


def log(model: str, scores: dict[str, float]) -> dict[str, Any]:
    """What lm-eval 0.4.13 writes about two tasks, a group of two, and RULER at 4096 tokens without errors."""
    tasks = {"arc_easy": 100, "gsm8k": 50, "mmlu_law": 30, "mmlu_art": 70, "niah_single_1": 40}
    results: dict[str, dict[str, Any]] = {
        "arc_easy": {"alias": "arc_easy", "acc,none": scores["arc_easy"], "acc_stderr,none": 0.02},
        "gsm8k": {"exact_match,strict-match": scores["gsm8k"], "exact_match_stderr,strict-match": 0.03},
        "mmlu": {"acc,none": scores["mmlu"], "acc_stderr,none": 0.01, "alias": "mmlu"},
        "mmlu_arts": {"acc,none": 0.1, "acc_stderr,none": 0.01},
        "mmlu_law": {"acc,none": 0.1, "acc_stderr,none": 0.01},
        "mmlu_art": {"acc,none": 0.1, "acc_stderr,none": 0.01},
        "wikitext": {"word_perplexity,none": 0.5, "word_perplexity_stderr,none": "N/A"},
        "niah_single_1": {"4096,none": scores["niah"], "4096_stderr,none": "N/A", "8192,none": -1},
    }
    kinds = {"gsm8k": "generate_until", "niah_single_1": "generate_until"}
    return {
        "results": results,
        "groups": {"mmlu": results["mmlu"], "mmlu_arts": results["mmlu_arts"]},
        "group_subtasks": {"mmlu": ["mmlu_law", "mmlu_arts"], "mmlu_arts": ["mmlu_art"], "arc_easy": []},
        "configs": {name: {"output_type": kinds.get(name, "multiple_choice")} for name in tasks},
        "versions": dict.fromkeys(tasks, 1.0),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {"wikitext": {"word_perplexity": False}, "arc_easy": {"acc": True}},
        "n-samples": {name: {"original": 500, "effective": size} for name, size in tasks.items()},
        "config": {"model": "hf", "model_args": {"pretrained": model}, "model_num_parameters": 1_500_000_000},
        "date": 1767322800.0,
        "task_hashes": {},
        "lm_eval_version": "0.4.13",
        "model_name": model,
    }


def teacher() -> dict[str, Any]:
    return log("org/teacher", {"arc_easy": 0.8, "gsm8k": 0.5, "mmlu": 0.6, "niah": 1.0})


def student() -> dict[str, Any]:
    return log("org/student", {"arc_easy": 0.7, "gsm8k": 0.2, "mmlu": 0.5, "niah": 0.25})


def write(folder: Path, name: str, value: dict[str, Any]) -> str:
    path = folder / name / "results_2026-01-02T03-04-05.000006.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return str(path)


def test_kinds_scores_and_bounds(tmp_path: Path) -> None:
    figures = read_averages(write(tmp_path, "t", teacher()), [write(tmp_path, "s", student())])
    assert [(each.kind, each.benchmark, each.student_score) for each in figures] == [
        ("loglikelihood", "arc_easy", 70),
        ("generation", "gsm8k", 20),
        ("loglikelihood", "mmlu", 50),
        ("recall", "niah_single_1 4096", 25),
    ]
    (row,) = ledger_rows(figures)
    assert {each.origin for each in row.figures} == {"printed average"}
    assert (row.figures[0].model, row.figures[0].teacher, row.figures[0].parameters) == (
        "student", "teacher", 1500,
    )  # fmt: skip
    found = row.recoveries["generation"]
    half = normal_quantile(0.5 + LEVEL / 2) * 3
    assert (found.point, found.low, found.high) == pytest.approx(
        (40, 100 * (20 - half) / (50 + half), 100 * (20 + half) / (50 - half))
    )
    assert row.recoveries["loglikelihood"].point == pytest.approx(100 * 120 / 140)
    assert row.recoveries["recall"].low < 25 < row.recoveries["recall"].high < 60


def test_what_was_evaluated_in_another_way_is_left_out_by_name(tmp_path: Path) -> None:
    changed = student()
    changed["n-shot"]["mmlu_art"] = 5
    changed["versions"]["arc_easy"] = 2.0
    del changed["results"]["niah_single_1"]
    figures = read_averages(write(tmp_path, "t", teacher()), [write(tmp_path, "s", changed)])
    assert [each.benchmark for each in figures] == ["gsm8k"]
    assert figures[0].note == (
        "student without arc_easy (version 2.0, the teacher's 1.0); "
        "mmlu (num_fewshot 0, 5, the teacher's 0); niah_single_1 4096 (not in the student's log)"
    )


def test_a_teacher_at_zero_has_no_recovery(tmp_path: Path) -> None:
    at_zero = log("org/teacher", {"arc_easy": 0.8, "gsm8k": 0.0, "mmlu": 0.6, "niah": 1.0})
    figures = read_averages(write(tmp_path, "t", at_zero), [write(tmp_path, "s", student())])
    assert "gsm8k (the teacher scores 0)" in figures[0].note


def test_folders_hold_the_logs_of_one_model(tmp_path: Path) -> None:
    parts = student(), student()
    parts[0]["results"] = {"arc_easy": parts[0]["results"]["arc_easy"]}
    parts[1]["results"] = {"gsm8k": parts[1]["results"]["gsm8k"]}
    write(tmp_path, "s/core", parts[0])
    write(tmp_path, "s/math", parts[1])
    of = write(tmp_path, "t", teacher())
    assert [each.benchmark for each in read_averages(of, [str(tmp_path / "s")])] == ["arc_easy", "gsm8k"]
    write(tmp_path, "s/math", parts[1] | {"model_name": "org/other"})
    with pytest.raises(EvalsuiteError, match="logs of org/student and org/other; pass one, or NAME="):
        read_averages(of, [str(tmp_path / "s")])
    assert read_averages(of, [f"kda={tmp_path / 's'}"])[0].model == "kda"
    write(tmp_path, "s/again", parts[1])
    with pytest.raises(EvalsuiteError, match="'gsm8k' is in another log"):
        read_averages(of, [f"kda={tmp_path / 's'}"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"results": {}}, "nothing to compare"),
        ({"results": []}, "expected a JSON object"),
        ({"configs": {}}, "'arc_easy' is missing"),
        ({"n-samples": None}, "'n-samples' is missing"),
        ({"group_subtasks": {"mmlu": None}}, "'mmlu' = None; expected a list"),
        ({"lm_eval_version": None}, "'lm_eval_version'"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvalsuiteError, match=message):
        read_averages(write(tmp_path, "t", teacher()), [write(tmp_path, "s", student() | change)])


def test_a_group_of_two_protocols_is_refused(tmp_path: Path) -> None:
    changed = student()
    changed["configs"]["mmlu_law"]["output_type"] = "generate_until"
    with pytest.raises(EvalsuiteError, match="'mmlu' averages generate_until and multiple_choice"):
        read_averages(write(tmp_path, "t", teacher()), [write(tmp_path, "s", changed)])


def test_nothing_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvalsuiteError, match=r"no results_\*\.json"):
        read_averages(str(tmp_path / "absent"), [])
    with pytest.raises(EvalsuiteError, match="at least one student"):
        main(["--averages", "teacher.json", "--out", str(tmp_path)])


def test_the_page_marks_them(tmp_path: Path) -> None:
    logs = [write(tmp_path, "t", teacher()), f"kda={write(tmp_path, 's', student())}"]
    main(["--averages", *logs, "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "README.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("| kda | teacher |"))
    assert "| 1.5B | 85.7 (" in line
    assert "| printed average | lm-eval 0.4.13, results" in line
    assert str(tmp_path) not in page

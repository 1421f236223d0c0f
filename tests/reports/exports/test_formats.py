"""Exports in the formats of others: fields, values, and what cannot be written."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.model_card import read_card
from evalsuite.reports import RunSelection
from evalsuite.reports.exports.every_eval_ever import _record
from evalsuite.reports.exports.formats import export
from evalsuite.reports.exports.loss_statement import _changed
from evalsuite.reports.imports import import_logs
from evalsuite.reports.measures.distances import distance_of
from evalsuite.reports.records.distances import DISTANCE_FILE
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import HubDataset, read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import edit_rows

BENCHMARKS = (
    SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 300),
    SyntheticBenchmark("facts", "Facts | <b>", "recall", 200, protocols=("generation",), contexts=(512,)),
    SyntheticBenchmark("wikitext", "WikiText", "language_modeling", 50, chance=None, perplexity=True),
)


def ability(level: float) -> Any:
    return lambda name, protocol, context: 3.0 / level if name == "wikitext" else level


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A teacher and a weak student; arc_easy states its dataset."""
    checkpoints = [
        SyntheticCheckpoint("teacher", ability(0.8), role="teacher"),
        SyntheticCheckpoint("a student", ability(0.6)),
    ]
    folder: Path = make_run(tmp_path / "run", BENCHMARKS, checkpoints)
    plan = read_manifest(folder)
    dataset = HubDataset(id="allenai/ai2_arc", config="ARC-Easy", split="test")
    benchmarks = [
        replace(each, dataset=dataset) if each.name == "arc_easy" else each for each in plan.benchmarks
    ]
    write_manifest(folder, replace(plan, benchmarks=tuple(benchmarks)))
    return folder


def score_of(report: Report, label: str, benchmark: str, protocol: str) -> float:
    (row,) = (
        row
        for row in report.scores
        if (report.checkpoints[row.checkpoint].label, row.benchmark, row.protocol)
        == (label, benchmark, protocol)
    )
    return row.score.point


# Hugging Face Hub


def test_eval_results_have_the_documented_fields(run: Path, tmp_path: Path) -> None:
    found = export([run], "eval-results", tmp_path / "out")
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in found.files)
    assert names == [
        f"{label}/.eval_results/arc_easy.{protocol}.yaml"
        for label in ("a-student", "teacher")
        for protocol in ("generation", "loglikelihood")
    ]
    (entry,) = yaml.safe_load(found.files[0].read_text())
    assert set(entry) <= {"dataset", "value", "date", "source", "notes", "verifyToken"}
    assert entry["dataset"] == {"id": "allenai/ai2_arc", "task_id": "ARC-Easy"}
    label = "teacher" if "teacher" in str(found.files[0]) else "a student"
    protocol = "generation" if "generation" in found.files[0].name else "loglikelihood"
    assert entry["value"] == pytest.approx(100 * score_of(build_report([run]), label, "arc_easy", protocol))
    assert any("facts@512, generation: the plan names no dataset" in text for text in found.left_out)


def test_the_hub_reads_the_model_index(run: Path, tmp_path: Path) -> None:
    found = export([run], "model-index", tmp_path / "out")
    assert [path.parent.name for path in found.files] == ["teacher", "a-student"]
    value = yaml.safe_load(found.files[1].read_text())
    name, results = model_index_to_eval_results(value["model-index"])
    assert name == "a student"
    assert all(isinstance(result, EvalResult) for result in results)
    (arc,) = (r for r in results if r.dataset_name == "ARC-Easy" and "log-likelihood" in r.metric_name)
    assert (arc.dataset_type, arc.dataset_config, arc.dataset_split) == (
        "allenai/ai2_arc",
        "ARC-Easy",
        "test",
    )
    assert arc.metric_value == pytest.approx(
        100 * score_of(build_report([run]), "a student", "arc_easy", "loglikelihood")
    )
    assert "300 documents" in arc.metric_name


# Model card


def test_the_model_card_states_what_was_lost(run: Path, tmp_path: Path) -> None:
    (path,) = export([run], "model-card", tmp_path / "out").files
    assert path == tmp_path / "out" / "a-student" / "README.md"
    card = ModelCard.load(path)
    assert {result.dataset_name for result in card.data.eval_results} >= {"ARC-Easy"}
    statement = card.text.split("## Distillation Loss Statement")[1]
    report = build_report([run])
    average = report.average(1, "loglikelihood")
    assert average is not None
    assert average.recovery.point is not None
    assert f"{100 * average.recovery.point:.1f}" in statement
    lost = {row.benchmark for row in report.drops if row.checkpoint == 1 and row.kind == "loss"}
    assert "arc_easy" in lost
    assert "ARC-Easy, log-likelihood | 300 |" in statement
    assert "No benchmark of: common sense, reasoning, instruction following." in statement
    assert "Facts \\| &lt;b&gt;" in statement
    assert "<b>" not in statement


def test_gains_over_a_teacher_at_chance_are_marked(tmp_path: Path) -> None:
    guessing = SyntheticCheckpoint("teacher", ability(0.25), role="teacher")
    run = make_run(tmp_path / "run", BENCHMARKS[:1], [guessing, SyntheticCheckpoint("student", ability(0.7))])
    (path,) = export([run], "model-card", tmp_path / "out").files
    statement = path.read_text().split("## Distillation Loss Statement")[1]
    gained = statement.split("**Gained**")[1].split("**Not measured**")[0]
    assert "ARC-Easy, log-likelihood (not informative) | 300 |" in gained
    assert "| &lt; 0.0001 |" in gained
    assert "ARC-Easy, log-likelihood: not informative, since the teacher is not above chance" in statement


def test_distances_are_stated_if_they_were_measured(run: Path, tmp_path: Path) -> None:
    (path,) = export([run], "model-card", tmp_path / "without").files
    assert "- Distance from the teacher over the whole vocabulary" in path.read_text()
    teacher, student = (each.weights_id for each in read_manifest(run).checkpoints)
    rows = [
        {
            "weights_id": weights,
            "bits": bits,
            "teacher": teacher,
            "text": "answers",
            "source": "arc_easy",
            "doc_id": f"{document:016x}",
            "token_class": None,
            "positions": None,
            "tokens": 4,
            "kl": 4 * kl * (1 + 0.1 * (document % 3)),
            "agreement": 3,
            "teacher_nll": 1.0,
            "student_nll": 2.0,
        }
        for weights, bits, kl in ((student, None, 0.09), (teacher, 8, 0.001), (teacher, 4, 0.1))
        for document in range(20)
    ]
    DISTANCE_FILE.add(run, pd.DataFrame(rows))
    (path,) = export([run], "model-card", tmp_path / "with").files
    row = distance_of(build_report([run]), 1)
    assert row is not None
    assert row.equivalent_bits.point is not None
    shown = f"| right answers of the benchmarks | 20 | 80 | {row.kl.point:.3g} ("
    (line,) = (line for line in path.read_text().splitlines() if line.startswith(shown))
    assert f"| 75.0 (75.0 to 75.0) | {row.equivalent_bits.point:.1f} (" in line
    assert "- Distance from the teacher" not in path.read_text()


def test_what_is_incomplete_is_not_measured(run: Path, tmp_path: Path) -> None:
    left = iter(range(1000))
    edit_rows(
        run,
        "arc_easy",
        "loglikelihood",
        lambda _, row: None if row["checkpoint"] == "a student" and next(left) < 5 else row,
    )
    (path,) = export([run], "model-card", tmp_path / "out").files
    statement = path.read_text().split("## Distillation Loss Statement")[1]
    assert "'a student' has 295 of 300 documents under log-likelihood." in statement
    assert "ARC-Easy, log-likelihood |" not in statement


def test_the_card_of_distill_is_kept(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "a-student" / "README.md"
    path.parent.mkdir(parents=True)
    path.write_text(
        "---\nlicense: mit\nbase_model: [org/teacher]\nmodel-index: stale\n---\n\n# a student\n\n"
        "Introduction.\n\n"
        "## Distillation Loss Statement\n\nNot measured.\n\n## How to load it\n\nAs usual.\n"
    )
    for _ in range(2):  # repeated, it replaces what it wrote
        export([run], "model-card", tmp_path / "out")
        front_matter, body = read_card(path.read_text(), "card")
        assert (front_matter["license"], front_matter["base_model"]) == ("mit", ["org/teacher"])
        assert front_matter["model-index"][0]["name"] == "a student"
        assert "Introduction." in body
        assert body.count("## Distillation Loss Statement") == 1
        assert body.rstrip().endswith("## How to load it\n\nAs usual.")
        assert "Not measured.\n" not in body


def test_a_damaged_card_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "a-student" / "README.md"
    path.parent.mkdir(parents=True)
    path.write_text("---\nlicense: [\n---\n# a student\n")
    with pytest.raises(DataError, match=r"README.md: the front matter: not YAML"):
        export([run], "model-card", tmp_path / "out")


# Every Eval Ever

AGGREGATE = {
    "schema_version", "evaluation_id", "evaluation_timestamp", "retrieved_timestamp", "source_metadata",
    "eval_library", "model_info", "evaluation_results", "detailed_evaluation_results",
}  # fmt: skip
"""Top-level fields of eval.schema.json, which allows no others."""
INSTANCE = {
    "schema_version", "evaluation_id", "model_id", "evaluation_name", "evaluation_result_id", "sample_id",
    "sample_hash", "interaction_type", "input", "output", "messages", "answer_attribution", "evaluation",
    "token_usage", "performance", "error", "metadata",
}  # fmt: skip
"""Top-level fields of instance_level_eval.schema.json, which allows no others."""
REQUIRED = INSTANCE - {
    "evaluation_result_id", "sample_hash", "messages", "token_usage", "performance", "error", "metadata",
}  # fmt: skip


def eee(run: Path, out: Path) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]], Path]]:
    """Label → aggregate, records and path of the aggregate."""
    found = export([run], "every-eval-ever", out)
    assert all("wikitext" in text for text in found.left_out)
    assert found.left_out
    result = {}
    for path in found.files:
        if path.suffix == ".json":
            value = json.loads(path.read_text())
            samples = path.with_name(f"{path.stem}_samples.jsonl").read_text().splitlines()
            result[value["model_info"]["name"]] = value, [json.loads(line) for line in samples], path
    return result


def test_aggregates_follow_the_schema(run: Path, tmp_path: Path) -> None:
    report = build_report([run])
    for label, (value, records, path) in eee(run, tmp_path / "out").items():
        assert set(value) == AGGREGATE
        assert value["schema_version"] == "0.3.0"
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", path.stem)
        assert value["source_metadata"]["source_type"] in ("documentation", "evaluation_run")
        assert value["source_metadata"]["evaluator_relationship"] in (
            "first_party", "third_party", "collaborative", "other",
        )  # fmt: skip
        details = value["model_info"]["additional_details"]
        assert details["deployment_type"] in ("self_deployed", "externally_managed", "unknown")
        assert details["model_availability"] in ("open_weights", "closed_weights", "unknown")
        assert all(isinstance(each, str) for each in details.values())
        detailed = value["detailed_evaluation_results"]
        samples = path.with_name(f"{path.stem}_samples.jsonl")
        assert detailed["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
        assert (detailed["total_rows"], detailed["format"]) == (len(records), "jsonl")
        assert (tmp_path / "out" / detailed["file_path"]) == samples
        names = [each["evaluation_result_id"] for each in value["evaluation_results"]]
        assert len(names) == len(set(names)) == 3
        for result in value["evaluation_results"]:
            config, details = result["metric_config"], result["score_details"]
            assert config["min_score"] <= details["score"] <= config["max_score"]
            assert config["score_type"] == "continuous"
            assert config["lower_is_better"] is False
            source = result["source_data"]
            assert source["source_type"] in ("hf_dataset", "other")
            assert ("hf_repo" in source) == (source["source_type"] == "hf_dataset")
            _, benchmark, protocol = result["evaluation_name"].split(".")
            expected = score_of(report, label, benchmark.split("@")[0], protocol)
            assert details["score"] == pytest.approx(expected)
            scores = [
                r["evaluation"]["score"] for r in records if r["evaluation_name"] == result["evaluation_name"]
            ]
            assert sum(scores) / len(scores) == pytest.approx(expected)


def test_records_follow_the_schema(run: Path, tmp_path: Path) -> None:
    for value, records, _ in eee(run, tmp_path / "out").values():
        results = {each["evaluation_result_id"] for each in value["evaluation_results"]}
        for record in records:
            assert set(record) >= REQUIRED
            assert set(record) <= INSTANCE
            assert record["evaluation_id"] == value["evaluation_id"]
            assert record["model_id"] == value["model_info"]["id"]
            assert record["evaluation_result_id"] in results
            assert record["interaction_type"] == "single_turn"
            assert "messages" not in record
            assert all(isinstance(each, str) for each in record["input"]["reference"])
            assert record["input"]["raw"] == ""
            assert all(isinstance(each, str) for each in record["metadata"].values())
            assert isinstance(record["evaluation"]["is_correct"], bool)


@pytest.mark.parametrize(("score", "is_correct"), [(1.0, True), (0.5, False), (0.0, False)])
def test_a_record_is_correct_with_a_full_score_alone(score: float, is_correct: bool) -> None:
    row = dict.fromkeys(("doc_id", "prompt_hash", "outcome", "error"), "") | {"seed": 0, "detail": {}}
    row |= {"values": {"f1": score}, "choices": {}}
    each: Any = SimpleNamespace(how=SimpleNamespace(metric="f1"), row=SimpleNamespace(protocol="generation"))
    assert _record(row, each)["evaluation"] == {"score": score, "is_correct": is_correct}


def test_what_is_exported_can_be_imported(run: Path, tmp_path: Path) -> None:
    sources = [("every-eval-ever", path) for _, _, path in eee(run, tmp_path / "out").values()]
    runs = import_logs(sources, tmp_path / "imported")
    imported = build_report(runs, RunSelection(teacher="teacher"))
    original = build_report([run])
    assert [each.label for each in imported.checkpoints] == ["teacher", "a student"]
    found = {
        (r.checkpoint, r.benchmark, r.protocol): (r.score.point, r.wins, r.losses) for r in imported.scores
    }
    for row in original.scores:
        if row.benchmark != "wikitext":
            name = row.benchmark if row.context is None else f"{row.benchmark}-{row.context}"
            key = row.checkpoint, f"evalsuite.{name}.{row.protocol}", row.protocol
            assert found[key] == (pytest.approx(row.score.point), row.wins, row.losses)


# Refusals


def test_an_unknown_format_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--format: unknown exporter 'modelcard'; did you mean 'model-card'"
    ):
        export([run], "modelcard", tmp_path / "out")


def test_losses_are_listed_largest_first_with_what_got_worse(report: Report) -> None:
    lines = _changed(report, 2, "loss").splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    drops = [float(each[2].split()[0]) / (100 if "points" in each[2] else 1) for each in cells]
    assert len(drops) > 2
    assert drops == sorted(drops, reverse=True)
    counts = [[int(each) for each in line[4:6]] for line in cells if line[4].isdigit()]
    assert counts
    assert all(worse > better for worse, better in counts)


def test_students_without_a_teacher_have_no_statement(tmp_path: Path) -> None:
    checkpoints = [SyntheticCheckpoint("alone", ability(0.6))]
    run = make_run(tmp_path / "run", BENCHMARKS[:1], checkpoints)
    with pytest.raises(DataError, match=r"no student is compared with a teacher.*--teacher"):
        export([run], "model-card", tmp_path / "out")

"""Contexts that a checkpoint does not read, and scores beyond its stated positions, up to the gate."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.reports import compare, load_policy, policy_from_options, run_gate
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.blocks import Part, Text
from evalsuite.reports.measures.recall import recall, recall_section
from evalsuite.reports.measures.scores import SCORES
from evalsuite.reports.report import build_report
from evalsuite.reports.run import read_manifest, write_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import edit_rows

READS = {"teacher": 2048, "long": 2048, "short": 512}
WHY = "supports at most 512 tokens"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A teacher and two students, of which one reads only the shorter of two contexts."""
    made: Path = make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark("facts", "Facts", "knowledge", 200),
            SyntheticBenchmark("niah_single_1", "S-NIAH-1", "recall", 60, 0.0, (512, 1024), ("generation",)),
        ],
        [
            SyntheticCheckpoint(label, lambda b, p, c: 0.9, "teacher" if label == "teacher" else "student")
            for label in READS
        ],
    )
    with_positions(made, READS)
    edit_rows(made, "niah_single_1", "generation", lambda _, row: None if not_read(row) else row)
    return made


def not_read(row: dict[str, Any]) -> bool:
    return bool(row["context"] > READS[row["checkpoint"]])


def with_positions(run: Path, reads: dict[str, int], max_length: int | None = None) -> None:
    plan = read_manifest(run)
    checkpoints = [replace(each, positions=reads[each.label]) for each in plan.checkpoints]
    write_manifest(run, replace(plan, checkpoints=tuple(checkpoints), max_length=max_length))


def test_unread_context_is_named_and_not_missing(run: Path) -> None:
    report = build_report([run])
    short = next(i for i, each in enumerate(report.checkpoints) if each.label == "short")
    assert report.tensor.unread == {(short, ("niah_single_1", "generation", 1024)): WHY}
    assert not report.tensor.incomplete
    assert f"S-NIAH-1 at 1,024 tokens: not read by 'short', which {WHY}." in report.warnings
    rows = list(csv.DictReader(io.StringIO(SCORES.csv(report))))
    (row,) = (row for row in rows if row["status"] == "not read")
    assert (row["label"], row["context"], row["documents"], row["score"]) == ("short", "1024", "0", "")
    assert {row["status"] for row in rows} == {"measured", "not read"}
    (part,) = (block for block in recall_section(report) if isinstance(block, Part))
    assert Text(f"S-NIAH-1 at 1,024 tokens: not read by 'short', which {WHY}.") in part.blocks
    # Its mean over the contexts is not that of the others: it has none, and no rank.
    means = {
        row.checkpoint: row for row in report.of(recall) if row.kind == "needles" and row.context is None
    }
    assert means[short].score.interval is None
    ranks = {
        row.checkpoint: row.rank
        for row in report.averages
        if (row.scope, row.protocol) == ("all", "generation")
    }
    assert ranks[short] is None
    assert [rank for rank in ranks.values() if rank] == [1]


def test_context_that_no_student_reads_costs_no_rank(run: Path) -> None:
    with_positions(run, READS | {"long": 512})
    edit_rows(
        run,
        "niah_single_1",
        "generation",
        lambda _, row: None if row["context"] == 1024 and row["checkpoint"] == "long" else row,
    )
    report = build_report([run])
    ranks = [row.rank for row in report.averages if (row.scope, row.protocol) == ("all", "generation")]
    assert sorted(rank for rank in ranks if rank) in ([1, 1], [1, 2])


def test_page_says_what_is_not_read(run: Path, tmp_path: Path) -> None:
    page = compare([run], tmp_path / "out").page.read_text()
    text = re.sub(r"<wbr>", "", page)
    assert f"S-NIAH-1 at 1,024 tokens: not read by &#39;short&#39;, which {WHY}." in text
    assert '"not read"' in text


def test_gate_ignores_unread_contexts_unless_the_policy_counts_them(run: Path, tmp_path: Path) -> None:
    assert run_gate([run], policy_from_options(min_recovery=0.5)).exit_code == 0
    policy = tmp_path / "gate.yaml"
    rule: dict[str, Any] = {"metric": "recovery", "min": 0.5, "protocol": "generation"}
    policy.write_text(yaml.safe_dump({"rules": [rule], "unread_contexts": "missing"}))
    verdict = run_gate([run], load_policy(policy))
    assert verdict.exit_code == 3
    assert (
        f"niah_single_1 at 1,024 tokens: 'short' has 0 of 60 documents under generation (it {WHY})"
        in verdict.text
    )
    assert "Contexts that a checkpoint does not read count as not measured" in verdict.text
    # A rule that names the context is about nothing else.
    policy.write_text(yaml.safe_dump({"rules": [rule | {"benchmark": "niah_single_1", "context": 1024}]}))
    verdict = run_gate([run], load_policy(policy))
    assert verdict.exit_code == 3
    assert f"niah_single_1 at 1,024 tokens: 'short' {WHY}" in verdict.text


def test_missing_rows_of_a_context_that_is_read_stay_missing(run: Path) -> None:
    with_positions(run, dict.fromkeys(READS, 2048))
    tensor = load_result_tensor([run])
    assert not tensor.unread
    assert [(each.context, each.documents, each.planned) for each in tensor.incomplete] == [(1024, 0, 60)]
    assert run_gate([run], policy_from_options(min_recovery=0.5)).exit_code == 3


def test_plan_of_a_run_with_the_option_reads_what_another_leaves_out(run: Path) -> None:
    """Two runs of the same weights: what one of them reads is planned."""
    with_positions(run, READS, max_length=1024)
    tensor = load_result_tensor([run])
    assert not tensor.unread
    assert [each.context for each in tensor.incomplete] == [1024]


def test_scores_beyond_the_stated_positions_are_marked_everywhere(run: Path, tmp_path: Path) -> None:
    with_positions(run, {"teacher": 512, "long": 512, "short": 512}, max_length=1024)
    edit_rows(
        run,
        "niah_single_1",
        "generation",
        lambda _, row: row | {"out_of_distribution": row["context"] == 1024},
    )
    report = build_report([run])
    marked = {
        (report.checkpoints[row.checkpoint].label, row.context): row.out_of_distribution
        for row in report.scores
    }
    assert {key for key, count in marked.items() if count} == {("teacher", 1024), ("long", 1024)}
    assert marked["long", 1024] == 60
    sentence = next(text for text in report.warnings if "out of distribution" in text)
    assert sentence.startswith("S-NIAH-1 at 1,024 tokens: out of distribution for 'teacher', 'long'")
    rows = csv.DictReader(io.StringIO(SCORES.csv(report)))
    counts = {(row["label"], row["context"]): row["out_of_distribution"] for row in rows if row["context"]}
    assert counts["long", "1024"] == "60"
    assert counts["long", "512"] == "0"
    page = compare([run], tmp_path / "out").page.read_text()
    assert "90 †" in page or "†" in page
    assert "† out of distribution, beyond the positions that the model" in page

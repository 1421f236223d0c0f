"""Admission of the benchmarks of runs, as CSV and Markdown."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, write_text
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES
from evalsuite.reports.analysis.measures.admission import AdmissionDecision, AdmissionRule, decide
from evalsuite.reports.markdown import table
from evalsuite.reports.records.names import Name, find
from evalsuite.reports.records.score_files import read_rows, score_paths
from evalsuite.reports.run import Checkpoint, Manifest, read_manifest

COLUMNS = (
    "benchmark",
    "protocol",
    "documents",
    "score",
    "best_constant",
    "lead",
    "lead_low",
    "lead_high",
    "named",
    "admitted",
    "why",
)


def admit(run: Path, teacher: str | None, rule: AdmissionRule) -> list[AdmissionDecision]:
    """Decide on every benchmark of a run, in the order of its plan.

    Args:
        run: the run folder.
        teacher: label, weights_id or path of the checkpoint that the rule is applied to; None: the plan's
            teacher.
        rule: the rule.

    Raises:
        ConfigError: the run has no such checkpoint, or none or several with the role of a teacher.
        DataError: score rows of several fingerprints, or rows without the right answers.
    """
    plan = read_manifest(run)
    checkpoint = _checkpoint(plan, teacher, run)
    decisions = []
    for benchmark in plan.benchmarks:
        rows = {name: _rows(run, benchmark.name, name, checkpoint) for name in benchmark.protocols}
        metrics = {name: how.metric for name, how in benchmark.protocols.items()}
        decisions.append(decide(benchmark.name, benchmark.title, rows, metrics, rule))  # type: ignore[arg-type]
    return decisions


def _checkpoint(plan: Manifest, name: str | None, run: Path) -> Checkpoint:
    if name is None:
        found = [each for each in plan.checkpoints if each.role == "teacher"]
        if len(found) != 1:
            raise ConfigError(f"{run}: has {len(found)} teachers; name one checkpoint with --teacher")
        return found[0]
    known = [Name(each.label, (each.weights_id,), (each.path,)) for each in plan.checkpoints]
    return plan.checkpoints[find(name, known, f"--teacher, {run}")]


def _rows(run: Path, benchmark: str, protocol: str, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    rows = [
        row
        for path in score_paths(run, benchmark, protocol)
        for row in read_rows(path).values()
        if row["weights_id"] == checkpoint.weights_id
        and (not checkpoint.fingerprints or row["fingerprint"] in checkpoint.fingerprints)
    ]
    if len(prints := sorted({row["fingerprint"] for row in rows})) > 1:
        raise DataError(
            f"{run}: '{checkpoint.label}' was evaluated on {benchmark} with several engines, dtypes or "
            f"package versions ({', '.join(prints)}); keep the score files of one"
        )
    return rows


def write_admission(decisions: Sequence[AdmissionDecision], rule: AdmissionRule, out: Path) -> list[Path]:
    """Write admission.csv and admission.md, which contain no text of documents, and return their paths."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(decisions))
    write_text(out / "admission.csv", text.getvalue())
    write_text(out / "admission.md", markdown(decisions, rule))
    return [out / "admission.csv", out / "admission.md"]


def _cells(decisions: Sequence[AdmissionDecision]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for each in decisions:
        if not each.protocols:
            rows.append([each.benchmark, "", "", "", "", "", "", "", "", False, each.why])
        for part in each.protocols:
            numbers = (part.score, part.constant, part.lead.point, part.lead.low, part.lead.high, part.named)
            shown = [f"{number:.4f}" for number in numbers]
            rows.append([each.benchmark, part.protocol, part.documents, *shown, each.is_admitted, part.why])
    return rows


def markdown(decisions: Sequence[AdmissionDecision], rule: AdmissionRule) -> str:
    """Format the decisions as one table, under a sentence that states the rule."""
    rows = []
    for each in decisions:
        verdict = "admitted" if each.is_admitted else each.why
        if not each.protocols:
            rows.append([each.title, "", "", "", "", "", "", verdict])
        for part in each.protocols:
            lead = f"{100 * part.lead.point:.1f} ({100 * part.lead.low:.1f} to {100 * part.lead.high:.1f})"
            shares = [f"{100 * share:.1f}" for share in (part.score, part.constant)]
            named = f"{100 * part.named:.1f}"
            row = [each.title, PROTOCOL_TITLES[part.protocol], f"{part.documents:,}", *shares, lead, named]
            rows.append([*row, verdict])
            verdict = ""
    admitted = sum(each.is_admitted for each in decisions)
    header = [
        "benchmark",
        "protocol",
        "documents",
        "teacher",
        "best constant",
        "lead (95 %)",
        "named",
        "decision",
    ]
    return (
        f"{admitted} of {len(decisions)} benchmarks are admitted: at least {rule.min_documents:,} documents "
        "with both protocols, and under each protocol a lead over the best constant answer that is positive "
        f"by its interval and at least {rule.min_points:g} points, with an answer named on at least "
        f"{100 * rule.min_named:g} % of the documents. Scores in per cent.\n\n{table(header, rows)}\n"
    )

"""The tables of a report as CSV, unrounded: leaderboard, scores, recall, distances, probes, gap, paper."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from evalsuite.reports.analysis.measures.agreement import AgreementRow
from evalsuite.reports.analysis.measures.flips import MEASURES
from evalsuite.reports.analysis.measures.letters import LetterRow
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.columns import Entry, columns_of
from evalsuite.reports.formatting import estimate_cells, interval_cells
from evalsuite.reports.report import Report


def leaderboard_csv(report: Report) -> str:
    """One row per checkpoint, protocol and scope (`all`, `informative` or a category), in fractions."""
    columns = columns_of("csv")
    rows: list[dict[str, Any]] = []
    for row in report.averages:
        checkpoint, entry = report.checkpoints[row.checkpoint], Entry.of(report, row)
        cells: dict[str, Any] = {
            "label": checkpoint.label,
            "weights_id": checkpoint.plan.weights_id,
            "role": checkpoint.plan.role,
            "teacher": _teacher(report, row.checkpoint),
            "protocol": row.protocol,
            "scope": row.scope,
        }
        for name, column in columns.items():
            cells |= column.csv(name, entry)
        rows.append(cells)
    return _csv(rows)


def scores_csv(report: Report) -> str:
    """One row per checkpoint, benchmark, protocol and context; incomplete and unread cells have no score."""
    plans = {benchmark.name: benchmark for benchmark in report.benchmarks}
    flips = {(r.checkpoint, r.scope, r.protocol, r.context): r for r in report.agreements_by_benchmark}
    letters = {(r.checkpoint, r.benchmark, r.context): r for r in report.letters}
    counts_with = _counts_with(report)
    rows = []
    for row in report.scores:
        plan = plans[row.benchmark]
        how = plan.protocols[row.protocol]  # type: ignore[index]  # the keys are the protocol names
        rows.append(
            {
                "label": report.checkpoints[row.checkpoint].label,
                "weights_id": report.checkpoints[row.checkpoint].plan.weights_id,
                "role": report.checkpoints[row.checkpoint].plan.role,
                "teacher": _teacher(report, row.checkpoint),
                "benchmark": row.benchmark,
                "category": plan.category,
                "protocol": row.protocol,
                "context": row.context,
                "metric": how.metric if how.direction == "higher" else f"log-perplexity ({how.metric})",
                "status": "measured",
                "documents": row.documents,
                "counts_with": counts_with.get((row.checkpoint, row.benchmark, row.protocol, row.context)),
                "out_of_distribution": row.out_of_distribution,
                "planned": how.planned(row.context),
                "seeds": row.seeds,
                **interval_cells("score", row.score),
                "score_method": row.score.method,
                "seed_deviation": row.seed_deviation,
                **interval_cells("drop", row.drop),
                "drop_method": row.drop.method if row.drop else None,
                **estimate_cells("recovery", row.recovery),
                **estimate_cells("chance_normalized_recovery", row.chance_normalized_recovery),
                "wins": row.wins,
                "losses": row.losses,
                "mcnemar_p": row.mcnemar,
                "mde": row.mde,
                **row.outcomes,
                **_informative_cells(report, row),
                **_flip_cells(flips.get((row.checkpoint, row.benchmark, row.protocol, row.context))),
                **_letter_cells(letters.get((row.checkpoint, row.benchmark, row.context)), row.protocol),
            }
        )
    lacking = [(each.checkpoint, each.key, "incomplete", each.documents) for each in report.tensor.incomplete]
    lacking += [(checkpoint, key, "not read", 0) for checkpoint, key in report.tensor.unread]
    for checkpoint, (name, protocol, context), status, documents in lacking:
        plan = plans[name]
        how = plan.protocols[protocol]  # type: ignore[index]
        rows.append(
            {
                "label": report.checkpoints[checkpoint].label,
                "weights_id": report.checkpoints[checkpoint].plan.weights_id,
                "role": report.checkpoints[checkpoint].plan.role,
                "teacher": _teacher(report, checkpoint),
                "benchmark": name,
                "category": plan.category,
                "protocol": protocol,
                "context": context,
                "metric": how.metric,
                "status": status,
                "documents": documents,
                "planned": how.planned(context),
            }
        )
    return _csv(rows)


def _counts_with(report: Report) -> dict[tuple[int, str, str, int | None], str]:
    """Checkpoint and cell → the benchmark whose requests include those of the cell: the two count once."""
    found = {}
    cells = report.tensor.cells
    for i in range(len(report.checkpoints)):
        mine = [cell for cell in cells if i in cell.present]
        for at, into in report.tensor.counting.representatives(mine).items():
            found[(i, *mine[at].key)] = mine[into].benchmark.name
    return found


def recall_csv(report: Report) -> str:
    """One row per checkpoint, protocol, recall number and context."""
    return _csv(
        {
            "label": report.checkpoints[row.checkpoint].label,
            "weights_id": report.checkpoints[row.checkpoint].plan.weights_id,
            "teacher": _teacher(report, row.checkpoint),
            "protocol": row.protocol,
            "recall": row.kind,
            "context": row.context,
            "tasks": " ".join(row.tasks),
            "missing": " ".join(row.missing),
            "documents": row.documents,
            **estimate_cells("score", row.score),
            **estimate_cells("recovery", row.recovery),
        }
        for row in report.recall
    )


def distances_csv(report: Report) -> str:
    """One row per student or rounded teacher, text and part of it; KL in nats per token."""
    return _csv(
        {
            "label": None if row.checkpoint is None else report.checkpoints[row.checkpoint].label,
            "trained_again": int(row.is_retrained),
            "bits": row.bits,
            "teacher": report.checkpoints[row.teacher].label,
            "text": row.text,
            "kind": row.kind,
            "group": row.group,
            "documents": row.documents,
            "tokens": row.tokens,
            **interval_cells("kl", row.kl),
            **interval_cells("agreement", row.agreement),
            **estimate_cells("equivalent_bits", row.equivalent_bits),
        }
        for row in report.distances
    )


def probes_csv(report: Report) -> str:
    """One row per checkpoint, benchmark, context, group of documents, layer and segment; see `ProbeRow`."""
    measures = (
        *("tokens_right", "half_life", "longest_half_life", "beta", "write", "norm", "rank"),
        *("retained", "readout"),
    )
    rows = []
    for row in report.probes:
        cells: dict[str, Any] = {
            "label": report.checkpoints[row.checkpoint].label,
            "weights_id": report.checkpoints[row.checkpoint].plan.weights_id,
            "benchmark": row.benchmark,
            "context": row.context,
            "kind": row.kind,
            "group": row.group,
            "documents": row.documents,
            "found": row.found,
            "layer": row.layer,
            "mixer": row.mixer,
            "segment": row.segment,
        }
        for name in measures:
            cells |= estimate_cells(name, getattr(row, name))
        rows.append(cells | {"readout_head": row.readout_head})
    return _csv(rows)


def gap_csv(report: Report) -> str:
    """One row per student and benchmark with both protocols, and one for their average."""
    rows = []
    for row in report.gaps:
        flat: dict[str, Any] = {
            "label": report.checkpoints[row.checkpoint].label,
            "weights_id": report.checkpoints[row.checkpoint].plan.weights_id,
            "teacher": _teacher(report, row.checkpoint),
            "benchmark": row.benchmark,
            "context": row.context,
            "documents": row.documents,
            **interval_cells("gap", row.gap),
            **interval_cells("drop_loglikelihood", row.drop_loglikelihood),
            **interval_cells("drop_generation", row.drop_generation),
        }
        for who in ("teacher", "student"):
            flat[f"{who}_loglikelihood"] = row.loglikelihood[who]
            flat[f"{who}_generation"] = row.generation[who]
            names = (
                "correct_both",
                "correct_loglikelihood_only",
                "correct_generation_only",
                "correct_neither",
            )
            flat |= {f"{who}_{name}": value for name, value in zip(names, row.right[who], strict=True)}
            flat |= {f"{who}_share_{name}": share for name, share in row.outcomes[who].items()}
        flat |= {f"explained_{name}": value for name, value in row.explained.items()}
        rows.append(flat)
    return _csv(rows)


def paper_comparison_csv(report: Report) -> str:
    """One row per student and its counterpart in arXiv 2504.14366, on the benchmarks that both have."""
    return _csv(
        {
            "label": report.checkpoints[row.checkpoint].label,
            "weights_id": report.checkpoints[row.checkpoint].plan.weights_id,
            "teacher": _teacher(report, row.checkpoint),
            "benchmarks": " ".join(row.benchmarks),
            **estimate_cells("recovery", row.recovery),
            **estimate_cells("chance_normalized_recovery", row.chance_normalized_recovery),
            "paper_model": row.model,
            "paper_scale": None if row.model is None else row.scale,
            "paper_recovery": row.paper_recovery,
            "paper_chance_normalized_recovery": row.paper_chance_normalized_recovery,
        }
        for row in report.paper_comparison
    )


def _teacher(report: Report, checkpoint: int) -> str | None:
    teacher = report.checkpoints[checkpoint].teacher
    return None if teacher is None else report.checkpoints[teacher].label


def _informative_cells(report: Report, row: BenchmarkRow) -> dict[str, Any]:
    """Whether the benchmark is informative for the checkpoint's teacher, and why not."""
    teacher = report.checkpoints[row.checkpoint].teacher
    who = row.checkpoint if teacher is None else teacher
    for each in report.informative:
        if (each.teacher, each.benchmark, each.protocol) == (who, row.benchmark, row.protocol):
            return {"informative": int(each.is_informative), "not_informative_why": each.why or None}
    return {"informative": None, "not_informative_why": None}


def _flip_cells(row: AgreementRow | None) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name in MEASURES:
        estimate = None if row is None else getattr(row, name)
        cells |= interval_cells(name, None if estimate is None else estimate.interval)
    return cells


def _letter_cells(row: LetterRow | None, protocol: str) -> dict[str, Any]:
    """Named answers; empty under log-likelihood and without choices."""
    if row is None or protocol != "generation":
        return {"named": None, **interval_cells("accuracy_among_named", None), "letters": None}
    letters = " ".join(f"{name}:{share:.4f}" for name, share in row.letters.items())
    accuracy = interval_cells("accuracy_among_named", row.accuracy_among_named.interval)
    return {"named": row.named, **accuracy, "letters": letters}


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({key: _safe(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def _safe(value: Any) -> Any:
    """Quote text that a spreadsheet would evaluate as a formula; None becomes an empty cell."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value

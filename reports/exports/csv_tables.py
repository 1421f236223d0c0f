"""leaderboard.csv, scores.csv, gap.csv and paper_comparison.csv: every number of the page, unrounded."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import Interval


def leaderboard_csv(report: Report) -> str:
    """One row per checkpoint, protocol and scope (`all` or a category). Scores and drops are fractions."""
    rows = []
    for row in report.averages:
        checkpoint = report.checkpoints[row.checkpoint]
        rows.append(
            {
                "label": checkpoint.label,
                "weights_id": checkpoint.plan.weights_id,
                "role": checkpoint.plan.role,
                "teacher": _teacher(report, row.checkpoint),
                "protocol": row.protocol,
                "scope": row.scope,
                "rank": row.rank,
                "rank_low": row.rank_low,
                "rank_high": row.rank_high,
                **_estimate("recovery", row.recovery),
                **_estimate("chance_normalized_recovery", row.chance_normalized_recovery),
                **_interval("score", row.score),
                **_interval("drop", row.drop),
                "win_or_tie_rate": row.win_or_tie_rate,
                "benchmarks": " ".join(row.benchmarks),
                "missing": " ".join(row.missing),
                "documents": row.documents,
            }
        )
    return _csv(rows)


def scores_csv(report: Report) -> str:
    """One row per checkpoint, benchmark, protocol and context; incomplete cells have counts and no score."""
    plans = {benchmark.name: benchmark for benchmark in report.benchmarks}
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
                "planned": how.planned(row.context),
                "seeds": row.seeds,
                **_interval("score", row.score),
                "score_method": row.score.method,
                "seed_deviation": row.seed_deviation,
                **_interval("drop", row.drop),
                "drop_method": row.drop.method if row.drop else None,
                **_estimate("recovery", row.recovery),
                **_estimate("chance_normalized_recovery", row.chance_normalized_recovery),
                "wins": row.wins,
                "losses": row.losses,
                "mcnemar_p": row.mcnemar,
                "mde": row.mde,
                **row.outcomes,
            }
        )
    for cell in report.tensor.incomplete:
        plan = plans[cell.benchmark]
        rows.append(
            {
                "label": report.checkpoints[cell.checkpoint].label,
                "weights_id": report.checkpoints[cell.checkpoint].plan.weights_id,
                "role": report.checkpoints[cell.checkpoint].plan.role,
                "teacher": _teacher(report, cell.checkpoint),
                "benchmark": cell.benchmark,
                "category": plan.category,
                "protocol": cell.protocol,
                "context": cell.context,
                "metric": plan.protocols[cell.protocol].metric,  # type: ignore[index]
                "status": "incomplete",
                "documents": cell.documents,
                "planned": cell.planned,
            }
        )
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
            **_interval("gap", row.gap),
            **_interval("drop_loglikelihood", row.drop_loglikelihood),
            **_interval("drop_generation", row.drop_generation),
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
            **_estimate("recovery", row.recovery),
            **_estimate("chance_normalized_recovery", row.chance_normalized_recovery),
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


def _interval(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: interval.point, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _estimate(name: str, estimate: Estimate) -> dict[str, float | str | None]:
    return {**_interval(name, estimate.interval), f"{name}_undefined": estimate.why or None}


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

"""leaderboard.csv, scores.csv, gap.csv and published.csv: every number of the page, unrounded, row by row."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from evalsuite.reports.report import Report
from evalsuite.reports.resampled import Estimate
from evalsuite.reports.statistics.interval import Interval


def leaderboard_csv(report: Report) -> str:
    """One row per checkpoint, protocol and scope (`all` or a category). Fractions; deficit too."""
    rows = []
    for row in report.averages:
        subject = report.subjects[row.subject]
        rows.append(
            {
                "label": subject.label,
                "weights_id": subject.plan.weights_id,
                "role": subject.plan.role,
                "teacher": _teacher(report, row.subject),
                "protocol": row.protocol,
                "scope": row.scope,
                "rank": row.rank,
                "rank_low": row.rank_low,
                "rank_high": row.rank_high,
                **_estimate("recovery", row.recovery),
                **_estimate("centred_recovery", row.centred),
                **_interval("score", row.score),
                **_interval("deficit", row.deficit),
                "win_and_tie": row.win_and_tie,
                "benchmarks": " ".join(row.benchmarks),
                "missing": " ".join(row.missing),
                "documents": row.documents,
            }
        )
    return _csv(rows)


def scores_csv(report: Report) -> str:
    """One row per checkpoint, benchmark, protocol and context."""
    plans = {benchmark.name: benchmark for benchmark in report.benchmarks}
    rows = []
    for row in report.scores:
        plan = plans[row.benchmark]
        how = plan.protocols[row.protocol]  # type: ignore[index]  # the keys are these very texts
        rows.append(
            {
                "label": report.subjects[row.subject].label,
                "weights_id": report.subjects[row.subject].plan.weights_id,
                "role": report.subjects[row.subject].plan.role,
                "teacher": _teacher(report, row.subject),
                "benchmark": row.benchmark,
                "category": plan.category,
                "protocol": row.protocol,
                "context": row.context,
                "metric": how.metric if how.direction == "higher" else f"log-perplexity ({how.metric})",
                "documents": row.documents,
                "seeds": row.seeds,
                **_interval("score", row.score),
                "score_method": row.score.method,
                "seed_deviation": row.seed_deviation,
                **_interval("deficit", row.deficit),
                "deficit_method": row.deficit.method if row.deficit else None,
                **_estimate("recovery", row.recovery),
                **_estimate("centred_recovery", row.centred),
                "wins": row.wins,
                "losses": row.losses,
                "mcnemar_p": row.mcnemar,
                "detectable_deficit": row.detectable,
                **row.outcomes,
            }
        )
    return _csv(rows)


def gap_csv(report: Report) -> str:
    """One row per student and benchmark asked under both protocols, and one for their average."""
    rows = []
    for row in report.gaps:
        flat: dict[str, Any] = {
            "label": report.subjects[row.subject].label,
            "weights_id": report.subjects[row.subject].plan.weights_id,
            "teacher": _teacher(report, row.subject),
            "benchmark": row.benchmark,
            "context": row.context,
            "documents": row.documents,
            **_interval("gap", row.gap),
            **_interval("deficit_loglikelihood", row.deficit_ranked),
            **_interval("deficit_generation", row.deficit_written),
        }
        for who in ("teacher", "student"):
            flat[f"{who}_loglikelihood"] = row.ranked[who]
            flat[f"{who}_generation"] = row.written[who]
            names = ("right_both", "right_ranked_only", "right_written_only", "right_neither")
            flat |= {f"{who}_{name}": value for name, value in zip(names, row.right[who], strict=True)}
            flat |= {f"{who}_share_{name}": share for name, share in row.outcomes[who].items()}
        flat |= {f"explained_{name}": value for name, value in row.explained.items()}
        rows.append(flat)
    return _csv(rows)


def published_csv(report: Report) -> str:
    """One row per student beside the paper's student of its mixer, on the benchmarks that both have."""
    return _csv(
        {
            "label": report.subjects[row.subject].label,
            "weights_id": report.subjects[row.subject].plan.weights_id,
            "teacher": _teacher(report, row.subject),
            "benchmarks": " ".join(row.benchmarks),
            **_estimate("recovery", row.ours),
            **_estimate("centred_recovery", row.centred),
            "their_model": row.model,
            "their_scale": None if row.model is None else row.scale,
            "their_recovery": row.theirs,
            "their_centred_recovery": row.theirs_centred,
        }
        for row in report.published
    )


def _teacher(report: Report, subject: int) -> str | None:
    teacher = report.subjects[subject].teacher
    return None if teacher is None else report.subjects[teacher].label


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
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _safe(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def _safe(value: Any) -> Any:
    """A label that a spreadsheet would run as a formula is written as text."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value

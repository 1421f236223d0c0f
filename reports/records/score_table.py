"""The score table: the score rows of one run, aggregated per checkpoint, benchmark, protocol and metric."""

import io
from pathlib import Path

import numpy as np
import pandas as pd

from evalsuite.foundation import write_bytes
from evalsuite.foundation.taxonomy import OUTCOMES, PERPLEXITIES
from evalsuite.reports.records.reading import NO_CONTEXT, read_run_scores
from evalsuite.reports.records.score_files import score_paths
from evalsuite.reports.run import Benchmark, Manifest, read_manifest
from evalsuite.reports.statistics.intervals import wilson

_GROUP = ["weights_id", "fingerprint", "context", "seed"]


def score_table(run: Path, plan: Manifest | None = None, only: tuple[str, str] | None = None) -> pd.DataFrame:
    """Aggregate the score rows of a run folder; benchmarks without score rows are skipped.

    Args:
        run: the folder.
        plan: its plan, if it was read.
        only: the name and the protocol of one benchmark; default: all.

    Returns:
        Columns: label, role, weights_id, fingerprint, benchmark, category, protocol, context (missing for
        none), seed, metric, main (whether tables show this metric), direction, documents
        (for a perplexity without errors), score (mean over documents, an error scores 0; for a perplexity the
        log-perplexity per unit), low and high (95 % Wilson interval if every value is 0 or 1, else missing),
        and a count per outcome.

    Raises:
        DataError: invalid score rows, as for `read_score_rows`.
    """
    plan = plan or read_manifest(run)
    tables = [
        _of_protocol(run, plan, benchmark, protocol)
        for benchmark, protocol in plan.cells()
        if only in (None, (benchmark.name, protocol)) and score_paths(run, benchmark.name, protocol)
    ]
    tables = [table for table in tables if not table.empty]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def write_scores(run: Path) -> pd.DataFrame:
    """Write `<run>/scores.parquet` from the score rows, atomically, and return the table."""
    table = score_table(run)
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    write_bytes(Path(run) / "scores.parquet", buffer.getvalue())
    return table


def _of_protocol(run: Path, plan: Manifest, benchmark: Benchmark, protocol: str) -> pd.DataFrame:
    how = benchmark.protocols[protocol]  # type: ignore[index]  # the keys are these very texts
    frame = read_run_scores(run, benchmark.name, protocol, [how.metric, *([how.units] if how.units else [])])
    metrics = [name.removeprefix("value.") for name in frame.columns if name.startswith("value.")]
    counts = {how.units, *(PERPLEXITIES[name] for name in metrics if name in PERPLEXITIES)}
    rows = []
    for (weights_id, fingerprint, context, seed), part in frame.groupby(_GROUP, observed=True, sort=False):
        checkpoint = plan.checkpoint(str(weights_id), str(fingerprint))
        outcomes = part["outcome"].value_counts()
        for metric in metrics:
            main = metric == how.metric
            units = how.units if main else PERPLEXITIES.get(metric)
            if metric in counts:
                continue
            values, failed = part[f"value.{metric}"], part["outcome"] == "error"
            direction = how.direction if main else "lower" if metric in PERPLEXITIES else "higher"
            values = (values.mask(failed, 0.0) if direction == "higher" else values[~failed]).dropna()
            rows.append(
                {
                    "label": checkpoint.label if checkpoint else part["checkpoint"].iloc[0],
                    "role": checkpoint.role if checkpoint else "student",
                    "weights_id": weights_id,
                    "fingerprint": fingerprint,
                    "benchmark": benchmark.name,
                    "category": benchmark.category,
                    "protocol": protocol,
                    "context": pd.NA if context == NO_CONTEXT else context,
                    "seed": seed,
                    "metric": metric,
                    "main": main,
                    "direction": direction,
                    "documents": len(values),
                    **_mean(values, part.loc[values.index], units),
                    **{name: int(outcomes.get(name, 0)) for name in OUTCOMES},
                }
            )
    table = pd.DataFrame(rows)
    return table.astype({"context": "Int64"}) if rows else table


def _mean(values: pd.Series, part: pd.DataFrame, units: str | None) -> dict[str, float]:
    if values.empty:
        return {"score": np.nan, "low": np.nan, "high": np.nan}
    if units is not None:
        return {"score": values.sum() / part[f"value.{units}"].sum(), "low": np.nan, "high": np.nan}
    interval = wilson(float(values.sum()), len(values)) if values.isin([0.0, 1.0]).all() else None
    return {
        "score": float(values.mean()),
        "low": interval.low if interval else np.nan,
        "high": interval.high if interval else np.nan,
    }

"""Compute published crossovers a second time, from efficiency.jsonl alone, and compare them.

    python -m evalsuite.reports.studies.efficiency_crossovers reports/results/efficiency-h200

Shares no code with `evalsuite.reports.measures.efficiency.comparison`: ratios by pandas, crossings as roots
of a piecewise linear function of log context. Exit code 0: equal; 1: they differ; 64: files cannot be read.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq

TOLERANCE = 1e-6
"""Relative difference of a crossing."""
COLUMNS = {
    "prefill": ("request", "ttft_ms_median"),
    "decode": ("request", "step_ms_median"),
    "peak_throughput": ("decode", "step_ms_median"),
    "memory": ("request", "peak_bytes"),
    "cache": ("request", "cache_bytes"),
}
"""Quantity → kind of measurement, and the column with its cost."""


def crossing(contexts: np.ndarray, values: np.ndarray) -> float:
    """The context after which log ratios stay above 0; 0 if always, infinity if not at the last context."""
    logs, grid = np.log(values), np.log(contexts)
    if logs[-1] <= 0:
        return np.inf
    if (logs > 0).all():
        return 0.0
    last = int(np.flatnonzero(logs <= 0).max())
    if logs[last] == 0:
        return float(contexts[last])
    return float(np.exp(brentq(lambda x: np.interp(x, grid, logs), grid[last], grid[last + 1], xtol=1e-14)))


def recompute(rows: pd.DataFrame) -> pd.DataFrame:
    """student, engine and quantity → crossover with its ends, and the number of contexts."""
    rows = rows[(rows["status"] == "ok") & ((rows["kind"] == "decode") | (rows["batch"] == 1))]
    found = []
    for quantity, (kind, column) in COLUMNS.items():
        mine = rows[(rows["kind"] == kind) & rows[column].notna()].copy()
        ends = [column.replace("median", "low"), column.replace("median", "high")]
        divisor = mine["batch"] if quantity == "peak_throughput" else 1
        for name, source in (("point", column), ("low", ends[0]), ("high", ends[1])):
            mine[name] = mine[source] / divisor
        best = mine.loc[mine.groupby(["engine", "weights_id", "context"])["point"].idxmin()]
        both = best.merge(
            best, left_on=["engine", "teacher", "context"], right_on=["engine", "weights_id", "context"],
            suffixes=("", "_teacher"),
        )  # fmt: skip
        for (engine, label), group in both.sort_values("context").groupby(["engine", "label"]):
            if len(group) < 2:
                continue
            contexts = group["context"].to_numpy(float)
            ratios = {
                "crossover": group["point_teacher"] / group["point"],
                "crossover_low": group["high_teacher"] / group["low"],
                "crossover_high": group["low_teacher"] / group["high"],
            }
            crossings = {name: crossing(contexts, values.to_numpy(float)) for name, values in ratios.items()}
            found.append({"student": label, "engine": engine, "quantity": quantity, **crossings})
    return pd.DataFrame(found)


def main(folder: Path) -> int:
    """Compare a folder's crossovers.csv with those of its efficiency.jsonl."""
    try:
        lines = (folder / "efficiency.jsonl").read_text().splitlines()
        rows = pd.json_normalize([json.loads(line) for line in lines], sep="_")
        published = pd.read_csv(folder / "crossovers.csv")
    except (OSError, ValueError) as error:
        print(f"{folder}: {error}")
        return 64
    keys = ["student", "engine", "quantity"]
    columns = ["crossover", "crossover_low", "crossover_high"]
    published = published.dropna(subset=["crossover"]).groupby(keys, sort=False)[columns].first()
    again = recompute(rows).set_index(keys)[columns].reindex(published.index)
    first, second = published.to_numpy(float), again.to_numpy(float)
    same = np.isclose(first, second, rtol=TOLERANCE, atol=0)
    for number, column in np.argwhere(~same):
        index = published.index[number]
        print(f"{index}: {columns[column]} {first[number, column]} published, {second[number, column]} here")
    print(f"{int(same.sum())} of {same.size} crossings and ends agree to {TOLERANCE:g}")
    return 0 if same.all() and same.size else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

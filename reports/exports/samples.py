"""Samples of a run as parquet, small enough to publish: document ids instead of question texts."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation import write_bytes
from evalsuite.reports.records.run_folder import Plan, read_plan
from evalsuite.reports.records.score_files import read_rows, score_paths

MAX_CHARACTERS = 240
"""Length to which responses are cut."""


def export_samples(runs: Sequence[Path], out: Path, max_characters: int = MAX_CHARACTERS) -> list[Path]:
    """Write `<out>/samples/<benchmark>.<protocol>.parquet` from the scores of runs.

    One row per checkpoint, document and seed, sorted by document. Columns: `doc_id`, `context` and `seed`
    (if they vary), `checkpoint`, `outcome`, one column per metric. Log-likelihood adds `choice`, the index
    of the choice that the plan's metric picks (missing after an error). Generation adds `response` and
    `extracted`, the part that was scored, both cut to `max_characters`.

    Raises:
        RunFolderError: a folder is no run folder, or `out` cannot be written.
        DataError: invalid score rows.
    """
    paths = []
    plans = [(run, read_plan(run)) for run in runs]
    cells = [(benchmark.name, protocol) for _, plan in plans for benchmark, protocol in plan.cells()]
    for cell in dict.fromkeys(cells):
        rows = [row for run, plan in plans for row in _rows(run, plan, cell, max_characters)]
        if rows:
            path = Path(out) / "samples" / f"{'.'.join(cell)}.parquet"
            write_bytes(path, _packed(rows))
            paths.append(path)
    return paths


def _rows(run: Path, plan: Plan, cell: tuple[str, str], max_characters: int) -> Iterator[dict[str, Any]]:
    labels = {checkpoint.weights_id: checkpoint.label for checkpoint in plan.checkpoints}
    metric = next(
        (
            how.metric
            for each in plan.benchmarks
            for name, how in each.protocols.items()
            if (each.name, name) == cell
        ),
        None,
    )
    if metric is None:
        return
    rows = (row for path in score_paths(run, *cell) for row in read_rows(path).values())
    for row in rows:
        detail = row["detail"]
        response: dict[str, Any] = {}
        if row["protocol"] == "loglikelihood":
            response = {"choice": row["choices"].get(metric)}
        else:
            response = {key: str(detail.get(key) or "")[:max_characters] for key in ("response", "extracted")}
        yield {
            "doc_id": row["doc_id"],
            "context": row["context"],
            "seed": row["seed"],
            "checkpoint": labels.get(row["weights_id"], row["checkpoint"]),
            "outcome": row["outcome"],
            **row["values"],
            **response,
        }


def _packed(rows: list[dict[str, Any]]) -> bytes:
    # Adjacent rows hold the responses of all checkpoints to one document, which compress well.
    frame = pd.DataFrame(rows).sort_values(["context", "doc_id", "seed", "checkpoint"], kind="stable")
    single = [name for name in ("context", "seed") if frame[name].nunique(dropna=False) == 1]
    frame = frame.drop(columns=single)
    for name, column in frame.items():
        if column.dtype == float:
            frame[name] = column.astype("float32")
    for name in ("checkpoint", "outcome"):
        frame[name] = frame[name].astype("category")
    if "choice" in frame:
        frame["choice"] = frame["choice"].astype("Int16")
    buffer = io.BytesIO()
    pq.write_table(
        pa.Table.from_pandas(frame, preserve_index=False),
        buffer,
        compression="zstd",
        compression_level=19,
        row_group_size=1 << 22,
        data_page_size=1 << 26,
        use_dictionary=["checkpoint", "outcome", "doc_id"],
    )
    return buffer.getvalue()

"""Samples of a run as parquet, small enough to publish: document ids instead of question texts."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation import read_jsonl, write_bytes
from evalsuite.reports.records.run_folder import Plan, read_plan
from evalsuite.reports.records.schema import scores_path

MAX_CHARACTERS = 240
"""Length to which responses are cut."""


def export_samples(runs: Sequence[Path], out: Path, max_characters: int = MAX_CHARACTERS) -> list[Path]:
    """Write `<out>/samples/<benchmark>.<protocol>.parquet` from the scores of runs.

    One row per checkpoint, document and seed, sorted by document. Columns: `doc_id`, `context` and `seed`
    (if they vary), `checkpoint`, `outcome`, one column per metric. Log-likelihood adds `choice`, the index
    of the most likely choice (missing after an error). Generation adds `response` and `extracted`, the part
    that was scored, both cut to `max_characters`.

    Raises:
        RunFolderError: a folder is no run folder, or `out` cannot be written.
        DataError: invalid score rows.
    """
    paths = []
    plans = [(run, read_plan(run)) for run in runs]
    for name, protocol in dict.fromkeys(
        (benchmark.name, protocol) for _, plan in plans for benchmark, protocol in plan.cells()
    ):
        rows = [row for run, plan in plans for row in _rows(run, plan, name, protocol, max_characters)]
        if rows:
            path = Path(out) / "samples" / f"{name}.{protocol}.parquet"
            write_bytes(path, _packed(rows))
            paths.append(path)
    return paths


def _rows(
    run: Path, plan: Plan, benchmark: str, protocol: str, max_characters: int
) -> Iterator[dict[str, Any]]:
    path = scores_path(run, benchmark, protocol)
    if not path.is_file():
        return
    labels = {checkpoint.weights_id: checkpoint.label for checkpoint in plan.checkpoints}
    for row in read_jsonl(path):
        detail = row["detail"]
        response: dict[str, Any] = {}
        if protocol == "loglikelihood":
            response = {"choice": most_likely_choice(detail)}
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


def most_likely_choice(detail: Mapping[str, Any]) -> int | None:
    """Index of the choice with the highest log-probability; a rebuilt run stores it as `choice`."""
    if isinstance(choice := detail.get("choice"), int):
        return choice
    logprobs = detail.get("logprobs") or []
    return max(range(len(logprobs)), key=logprobs.__getitem__, default=None)


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

"""Every answer and score of a run, small enough to publish: documents by their ids, no question."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation import read_jsonl, write_bytes
from evalsuite.reports.records import records_path
from evalsuite.reports.run_folder import Plan, read_plan

MOST = 240
"""Characters of a written answer that are published."""
WRITTEN = {"answer": "response", "extracted": "extracted"}


def write_answers(runs: Sequence[Path], out: Path, most: int = MOST) -> list[Path]:
    """Write `<out>/answers/<benchmark>.<protocol>.parquet` from the records of runs.

    One row per checkpoint, document and seed, sorted by document: `doc_id`, `context` (where there are
    several), `seed` (likewise), `checkpoint`, `outcome`, a column per metric; ranked answers have `picked`,
    the number of the most likely choice (empty where asking failed); written ones have `answer`, cut to
    `most` characters, and `extracted`, likewise, what was judged of it.

    Raises:
        RunFolderError: a folder that is no run, or `out` cannot be written.
        DataError: records that are not sound.
    """
    written = []
    plans = [(run, read_plan(run)) for run in runs]
    for name, protocol in dict.fromkeys(
        (benchmark.name, protocol) for _, plan in plans for benchmark, protocol in plan.cells()
    ):
        rows = [row for run, plan in plans for row in _rows(run, plan, name, protocol, most)]
        if rows:
            path = Path(out) / "answers" / f"{name}.{protocol}.parquet"
            write_bytes(path, _packed(rows))
            written.append(path)
    return written


def _rows(run: Path, plan: Plan, benchmark: str, protocol: str, most: int) -> Iterator[dict[str, Any]]:
    path = records_path(run, benchmark, protocol)
    if not path.is_file():
        return
    labels = {checkpoint.weights_id: checkpoint.label for checkpoint in plan.checkpoints}
    for row in read_jsonl(path):
        detail = row["detail"]
        answer: dict[str, Any] = {}
        if protocol == "loglikelihood":
            logprobs = detail.get("logprobs") or []
            answer = {"picked": max(range(len(logprobs)), key=logprobs.__getitem__, default=None)}
        else:
            answer = {name: str(detail.get(key) or "")[:most] for name, key in WRITTEN.items()}
        yield {
            "doc_id": row["doc_id"],
            "context": row["context"],
            "seed": row["seed"],
            "checkpoint": labels.get(row["weights_id"], row["checkpoint"]),
            "outcome": row["outcome"],
            **row["values"],
            **answer,
        }


def _packed(rows: list[dict[str, Any]]) -> bytes:
    # Neighbours are the answers of all checkpoints to one document: much of them is the same.
    frame = pd.DataFrame(rows).sort_values(["context", "doc_id", "seed", "checkpoint"], kind="stable")
    single = [name for name in ("context", "seed") if frame[name].nunique(dropna=False) == 1]
    frame = frame.drop(columns=single)
    for name, column in frame.items():
        if column.dtype == float:
            frame[name] = column.astype("float32")
    for name in ("checkpoint", "outcome"):
        frame[name] = frame[name].astype("category")
    if "picked" in frame:
        frame["picked"] = frame["picked"].astype("Int16")
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

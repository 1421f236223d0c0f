"""The files from which anyone can recompute a study: the scores of every run, and those on every document."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation import DataError, write_text
from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.admission import find_checkpoint
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.run import read_manifest
from evalsuite.reports.studies.training_choices.design import TEACHER
from evalsuite.reports.studies.training_choices.page.reading import ScoredDocuments, read_documents

FILE = "documents.parquet"
SCORES = "scores.csv"
CELL = ("benchmark", "protocol", "context", "seed", "label")
"""Columns of `SCORES` by which it is sorted."""
MEASURED = ("metric", "documents", "score", "low", "high", "looped", "truncated", "extraction_failed")
"""Its other columns, from the score table of the run."""


def document_scores(data: ScoredDocuments) -> pd.DataFrame:
    """One row per document that every protocol of its benchmark reads.

    Columns: `benchmark`, `doc_id`, `context` (tokens; −1: the benchmark has none), and for each protocol
    ``PROTOCOL/chance``, ``PROTOCOL/teacher`` and ``PROTOCOL/RUN``: scores from 0 to 1 in float32, NaN under a
    protocol that the benchmark lacks.
    """
    scores = data.scores
    columns: dict[str, np.ndarray] = {
        "benchmark": np.array(scores.names)[scores.benchmarks],
        "doc_id": np.array([doc_id for doc_id, _ in data.documents]),
        "context": np.array([context for _, context in data.documents], np.int32),
    }
    for protocol in PROTOCOLS:
        columns[f"{protocol}/chance"] = scores.chance[protocol].astype(np.float32)
        for name, values in scores.values[protocol].items():
            columns[f"{protocol}/{name}"] = values.astype(np.float32)
    return pd.DataFrame(columns)


def write_documents(data: ScoredDocuments, out: Path) -> None:
    """Write `document_scores` into the folder of the page."""
    write_small(document_scores(data), out / FILE)


def write_all_scores(run: Path, benchmarks: Sequence[str], teacher: str | None, out: Path) -> Path:
    """Write `FILE` and `SCORES` of all checkpoints of a run, of a study or not; return the folder.

    The teacher is `TEACHER`, the others have their labels. Those without scores of every document are in
    `SCORES` alone, which counts documents. Scores and intervals are those of `score_table`, fractions of 1.

    Args:
        run: run folder with scores.
        benchmarks: those that are written.
        teacher: a name of the checkpoint whose documents count; None: the plan's teacher.
        out: the folder.

    Raises:
        ConfigError: no such teacher.
        DataError: as `read_documents`, or another checkpoint is labeled `TEACHER`.
    """
    plan = read_manifest(run)
    chosen = find_checkpoint(plan, teacher, run).label
    others = sorted(each.label for each in plan.checkpoints if each.label != chosen)
    if TEACHER in others:
        raise DataError(
            f"{run}: '{TEACHER}' and the teacher, '{chosen}', would have one name; relabel one of them"
        )
    labels = {chosen: TEACHER} | {label: label for label in others}
    data = read_documents(run, benchmarks, labels, one_protocol=True)
    table = score_table(run, plan)
    table = table[table["main"] & table["benchmark"].isin(benchmarks)].replace({"label": labels})
    table = table.sort_values(list(CELL))[[*CELL, *MEASURED]]
    write_text(out / SCORES, table.round(4).to_csv(index=False, lineterminator="\n"))
    write_documents(data, out)
    return out


def write_small(frame: pd.DataFrame, path: Path) -> None:
    """Write a table of many columns without statistics and a second schema, which outweigh the scores.

    Values of `doc_id` hardly repeat, so that a dictionary would only add its indices.
    """
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name != "doc_id"],
        write_statistics=False,
        store_schema=False,
    )

"""The file from which anyone can recompute a study: the score of every run on every document."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.studies.training_choices.page.reading import StudyData

FILE = "documents.parquet"


def document_scores(data: StudyData) -> pd.DataFrame:
    """One row per document that both protocols read.

    Columns: `benchmark`, `doc_id`, `context` (tokens; −1: the benchmark has none), and for each protocol
    ``PROTOCOL/chance``, ``PROTOCOL/teacher`` and ``PROTOCOL/RUN``, scores from 0 to 1 in float32.
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


def write_documents(data: StudyData, out: Path) -> None:
    """Write `document_scores` into the folder of the page."""
    write_small(document_scores(data), out / FILE)


def write_small(frame: pd.DataFrame, path: Path) -> None:
    """Write a table of many columns without statistics and a second schema, which outweigh the scores."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(
        table, path, compression="zstd", compression_level=19, write_statistics=False, store_schema=False
    )

"""`probes.parquet`: rows survive, parts are replaced, damaged files and impossible rows are refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import DataError
from evalsuite.reports.records.probes import (
    COLUMNS,
    FILE,
    PROBE_FILE,
    SCHEMA,
    SEGMENTS,
)
from evalsuite.reports.records.table_file import METADATA


def rows(weights_id: str = "a", *, context: int = 512, doc_id: str = "d", rank: float = 2.0) -> pd.DataFrame:
    """One document, a recurrent layer with two heads and a softmax layer with one."""
    found = []
    for layer, head, segment in [
        *((0, head, segment) for head in (0, 1) for segment in SEGMENTS),
        (1, 0, "question"),
    ]:
        recurrent, question = layer == 0, segment == "question"
        number = 1.0 if recurrent else np.nan
        found.append(
            {
                "weights_id": weights_id,
                "dtype": "float32",
                "benchmark": "niah_single_1",
                "context": context,
                "doc_id": doc_id,
                "depth": 30.0,
                "answer_tokens": 7,
                "answer_right": 5,
                "answer_logprob": -2.0,
                "layer": layer,
                "mixer": "gla" if recurrent else "softmax",
                "head": head,
                "segment": segment,
                "tokens": 20,
                "log_decay": -0.1 * number,
                "slowest_log_decay": -0.01 * number,
                "beta": np.nan,
                "write": 0.2 * number,
                "norm": number,
                "rank": rank * number,
                "retained": np.nan if segment == "before" else 0.5 * number,
                "readout": 0.1 if question else np.nan,
            }
        )
    return pd.DataFrame(found)


def test_parts_are_replaced_and_everything_else_stays(tmp_path: Path) -> None:
    PROBE_FILE.add(tmp_path, pd.concat([rows("a"), rows("b"), rows("a", context=1024)]))
    PROBE_FILE.add(tmp_path, rows("a", doc_id="other", rank=3.0))
    frame = PROBE_FILE.read(tmp_path / FILE)
    counts = frame.groupby(["weights_id", "context", "doc_id"]).size().to_dict()
    assert counts == {("a", 512, "other"): 9, ("a", 1024, "d"): 9, ("b", 512, "d"): 9}
    first = frame[(frame["weights_id"] == "a") & (frame["context"] == 512) & (frame["layer"] == 0)]
    assert list(first["segment"][:4]) == list(SEGMENTS)
    assert (first["rank"] == 3.0).all()
    assert (tmp_path / FILE).read_bytes() == PROBE_FILE.add(tmp_path, rows("b")).read_bytes()


def test_a_document_in_two_runs_counts_once(tmp_path: Path) -> None:
    for name, frame in (("one", rows()), ("two", pd.concat([rows(), rows("b")]))):
        (tmp_path / name).mkdir()
        PROBE_FILE.add(tmp_path / name, frame)
    frame = PROBE_FILE.read_all([tmp_path / "one", tmp_path / "two", tmp_path])
    assert len(frame) == 18
    assert PROBE_FILE.read_all([tmp_path]) is None


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("rank", np.nan, "row 1: 'rank' and 'norm' do not agree"),
        ("norm", np.nan, "row 1: 'rank' and 'norm' do not agree"),
        ("log_decay", 0.5, "row 1: 'log_decay' is out of range"),
        ("retained", np.inf, "row 1: 'retained' is out of range"),
        ("readout", 0.5, "row 1: 'readout' is not of the question"),
        ("depth", 101.0, "row 1: 'depth' is out of range"),
        ("answer_right", 8, "row 1: 'answer_right' is not between 0 and 'answer_tokens'"),
        ("answer_logprob", 1.0, "row 1: 'answer_logprob' is out of range"),
        ("segment", "needle", "layer, head and segment is there twice"),
        ("doc_id", None, "row 1: 'doc_id' is missing"),
    ],
)
def test_impossible_rows_are_refused_by_writer_and_reader(
    tmp_path: Path, column: str, value: object, reason: str
) -> None:
    frame = rows()
    frame[column] = frame[column].astype(object)
    frame.loc[0, column] = value
    with pytest.raises(DataError, match=f"{FILE}, row"):
        PROBE_FILE.add(tmp_path, frame)
    PROBE_FILE.add(tmp_path, rows())
    table = pq.read_table(tmp_path / FILE)
    columns = [pa.array(frame[name], kind, from_pandas=True) for name, kind in COLUMNS.items()]
    damaged = pa.table(dict(zip(COLUMNS, columns, strict=True)))
    pq.write_table(damaged.replace_schema_metadata(table.schema.metadata), tmp_path / FILE)
    with pytest.raises(DataError, match=reason):
        PROBE_FILE.read(tmp_path / FILE)


def test_a_document_without_one_of_its_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"probes.parquet: document d, layer 0: heads are missing"):
        PROBE_FILE.add(tmp_path, rows().drop(index=2))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = PROBE_FILE.add(tmp_path, rows())
    table = pq.read_table(path)
    newer = {METADATA: json.dumps({"schema": SCHEMA + 1})}
    for changed, reason in (
        (table.replace_schema_metadata(newer), f"probes of schema {SCHEMA + 1}"),
        (table.replace_schema_metadata({}), "not a file of probes"),
        (table.drop_columns(["norm"]), "column 'norm' is missing"),
        (table.append_column("more", [[1] * len(table)]), "column 'more' is unknown"),
    ):
        pq.write_table(changed, path)
        with pytest.raises(DataError, match=reason):
            PROBE_FILE.read(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"not a file of probes .* repeat `evalsuite probe`"):
        PROBE_FILE.read(path)

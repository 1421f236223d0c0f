"""`probes.parquet` of a run folder: recurrent states while needles are read, as `evalsuite probe` finds them.

One row per checkpoint, document, layer, head and segment of the document, as
`evalsuite.models.diagnostics.state_probe` yields them. A softmax layer has no state: it has rows of the
question alone, with its attention mass on the needle's value.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from evalsuite.foundation import DataError
from evalsuite.reports.records.table_file import TableFile, refuse

SCHEMA = 1
FILE = "probes.parquet"
SEGMENTS = ("before", "needle", "after", "question")
COLUMNS = {
    "weights_id": pa.string(),
    "dtype": pa.string(),  # of the model
    "benchmark": pa.string(),
    "context": pa.int64(),  # stated length in tokens
    "doc_id": pa.string(),
    "depth": pa.float32(),  # share of the haystack before the needle, in percent
    "answer_tokens": pa.int64(),
    "answer_right": pa.int64(),  # most likely tokens, given the answer before them
    "answer_logprob": pa.float32(),  # of the whole answer, in nats
    "layer": pa.int64(),
    "mixer": pa.string(),
    "head": pa.int64(),
    "segment": pa.string(),  # of `SEGMENTS`
    "tokens": pa.int64(),  # of the segment
    "log_decay": pa.float32(),  # of one step, mean over tokens and channels; null in an empty segment
    "slowest_log_decay": pa.float32(),  # the same of the channel that decays least
    "beta": pa.float32(),  # mean over tokens; null for additive mixers
    "write": pa.float32(),  # norm of a write ÷ norm of the state after the segment, mean over tokens
    "norm": pa.float32(),  # Frobenius norm of the state after the segment
    "rank": pa.float32(),  # effective rank of that state
    "retained": pa.float32(),  # share of the value's write that the state still holds; null before the needle
    "readout": pa.float32(),  # share of the readout that goes to the value; of the question alone
}
DOCUMENT = ["weights_id", "benchmark", "context", "doc_id"]
KEY = [*DOCUMENT, "layer", "head", "segment"]
_OPTIONAL = ("log_decay", "slowest_log_decay", "beta", "write", "norm", "rank", "retained", "readout")
_ROUNDING = 1e-4


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    order = frame["segment"].map({name: number for number, name in enumerate(SEGMENTS)})
    return frame.assign(order=order).sort_values([*KEY[:-1], "order"], kind="stable")


def _check(table: pa.Table, path: Path) -> None:
    """Raises DataError, naming the row, for an impossible value, or a key that is there twice."""
    frame = table.to_pandas()
    refuse(path, ~frame["segment"].isin(SEGMENTS), f"'segment' is none of {', '.join(SEGMENTS)}")
    stateful = frame["norm"].notna()
    for name in ("rank", "log_decay", "slowest_log_decay", "write"):
        lacking = stateful & frame[name].isna() & ((name == "rank") | (frame["tokens"] > 0))
        refuse(path, lacking | (~stateful & frame[name].notna()), f"'{name}' and 'norm' do not agree")
    refuse(
        path, (frame["segment"] == "question") != frame["readout"].notna(), "'readout' is not of the question"
    )
    for name, low, high in (
        ("answer_tokens", 1, np.inf),
        ("tokens", 0, np.inf),
        ("context", 1, np.inf),
        ("layer", 0, np.inf),
        ("head", 0, np.inf),
        ("depth", 0, 100),
        ("answer_logprob", -np.inf, _ROUNDING),
        ("log_decay", -np.inf, _ROUNDING),
        ("slowest_log_decay", -np.inf, _ROUNDING),
        ("beta", 0, 2 + _ROUNDING),
        ("write", 0, np.inf),
        ("norm", 0, np.inf),
        ("rank", 0, np.inf),
        ("retained", 0, np.inf),
        ("readout", 0, 1 + _ROUNDING),
    ):
        values = frame[name]
        wrong = values.notna() & ~(np.isfinite(values) & (values >= low) & (values <= high))
        refuse(path, wrong, f"'{name}' is out of range")
    outside = (frame["answer_right"] < 0) | (frame["answer_right"] > frame["answer_tokens"])
    refuse(path, outside, "'answer_right' is not between 0 and 'answer_tokens'")
    refuse(path, frame.duplicated(KEY), "the same document, layer, head and segment is there twice")
    heads = frame.groupby([*KEY[:-2], "segment"])["head"].agg(["size", "max"])
    incomplete = heads.index[heads["size"] <= heads["max"]]
    if len(incomplete):
        raise DataError(f"{path}: document {incomplete[0][3]}, layer {incomplete[0][4]}: heads are missing")


PROBE_FILE = TableFile(
    name=FILE,
    what="probes",
    command="evalsuite probe",
    schema=SCHEMA,
    columns=COLUMNS,
    optional=_OPTIONAL,
    key=KEY,
    part=("weights_id", "benchmark", "context"),
    sort=_sorted,
    check=_check,
)

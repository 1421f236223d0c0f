"""`distances.parquet` of a run folder: how far models are from their teacher, per document.

One row per compared model, text, document and group of tokens: sums over the compared tokens, as
`evalsuite.models.diagnostics.distance` yields them. A compared model is a student, or the teacher rounded to
a few bits, which is a mark of the yardstick.

A checkpoint of a run whose weights are lost can be represented by other weights that its recipe made when it
was trained again: their rows have a weights_id of their own and name the checkpoint in `same_recipe_as`.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from evalsuite.reports.records.table_file import TableFile, refuse

SCHEMA = 2
FILE = "distances.parquet"
ANSWERS = "answers"
"""`text` of the tokens of the right choices of a run's benchmarks; other texts are named by the caller."""
COLUMNS = {
    "weights_id": pa.string(),  # of the student; of the teacher itself for a rounding
    "bits": pa.int64(),  # of a rounded teacher; null for a student
    "same_recipe_as": pa.string(),  # weights_id of a checkpoint that the same recipe made; else null
    "teacher": pa.string(),  # weights_id
    "text": pa.string(),  # `answers`, or the name of a text such as `held-out`
    "source": pa.string(),  # benchmark, or the part of the text that documents come from
    "doc_id": pa.string(),
    "token_class": pa.string(),  # null where tokens are not classified
    "positions": pa.string(),  # such as `0-511`; null where positions are not told apart
    "tokens": pa.int64(),
    "kl": pa.float64(),  # KL(teacher ‖ model), summed over the tokens, in nats
    "agreement": pa.int64(),  # tokens with the same most likely token
    "teacher_nll": pa.float64(),  # negative log-likelihood of the tokens, summed, in nats
    "student_nll": pa.float64(),
}
KEY = ["weights_id", "bits", "teacher", "text", "source", "doc_id", "token_class", "positions"]
_OPTIONAL = ("bits", "same_recipe_as", "token_class", "positions")
_ROUNDING = 1e-4
"""A sum of KL divergences may be so much below zero by rounding."""


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.astype(dict.fromkeys(_OPTIONAL, object))
    return frame.sort_values(KEY, kind="stable", na_position="first")


def _check(table: pa.Table, path: Path) -> None:
    """Raises DataError, naming the row, for an impossible value, or a key that is there twice."""
    values = {name: table[name].to_numpy() for name in ("tokens", "kl", "agreement", "teacher_nll")}
    refuse(path, values["tokens"] < 1, "'tokens' is below 1")
    for name in ("kl", "teacher_nll"):
        wrong = ~np.isfinite(values[name]) | (values[name] < -_ROUNDING * values["tokens"])
        refuse(path, wrong, f"'{name}' is negative or not finite")
    outside = (values["agreement"] < 0) | (values["agreement"] > values["tokens"])
    refuse(path, outside, "'agreement' is not between 0 and 'tokens'")
    again = table.select(["weights_id", "same_recipe_as", "bits"]).to_pandas()
    refuse(path, again["weights_id"] == again["same_recipe_as"], "'same_recipe_as' is the same weights")
    rounded = again["bits"].notna() & again["same_recipe_as"].notna()
    refuse(path, rounded, "a rounded teacher ('bits') has no recipe ('same_recipe_as')")
    repeated = table.select(KEY).to_pandas().duplicated()
    refuse(path, repeated.to_numpy(), "the same model, document and group is there twice")


DISTANCE_FILE = TableFile(
    name=FILE,
    what="distances",
    command="evalsuite distance",
    schema=SCHEMA,
    columns=COLUMNS,
    optional=_OPTIONAL,
    key=KEY,
    part=("weights_id", "bits", "teacher", "text"),
    sort=_sorted,
    check=_check,
)

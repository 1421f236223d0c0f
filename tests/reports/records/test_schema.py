"""Score files: what is written is read back; what is invalid is refused by file and row."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.records.reading import NO_CONTEXT, read_run_scores, read_score_rows
from evalsuite.reports.records.schema import KEY, ScoreRow
from evalsuite.reports.records.score_files import (
    open_score_file,
    read_info,
    read_rows,
    score_path,
    score_paths,
)
from tests.reports.score_edits import SCORER, info_of, write_rows, write_unchecked


def a_row(**changes: Any) -> ScoreRow:
    """A score row, with changes."""
    keys: dict[str, Any] = {
        "weights_id": "w" * 16,
        "fingerprint": "f" * 16,
        "benchmark": "arc_easy",
        "protocol": "loglikelihood",
        "seed": 0,
        "context": None,
        "doc_id": "0001",
        "prompt_hash": "p1",
        "sampling": "",
        "checkpoint": "gla",
        "values": {"acc": 1, "acc_norm": 0.0},
        "chance": 0.25,
        "outcome": "ok",
        "cluster": "c1",
        "choices": {"acc": 0, "acc_norm": 27},
        "detail": {"logprobs": [-1.5, -2.0]},
    }
    return ScoreRow(**keys | changes)


def file_of(run: Path, *changes: dict[str, Any]) -> Path:
    """A score file of rows with changes that `ScoreRow` itself would refuse."""
    path = score_path(run, "arc_easy", "loglikelihood", "f" * 16)
    write_unchecked(path, [a_row().row() | {"doc_id": f"{i:04}"} | each for i, each in enumerate(changes)])
    return path


def test_rows_are_read_back(tmp_path: Path) -> None:
    rows = [a_row(doc_id=f"{i:04}", context=128 if i else None) for i in range(3)]
    rows.append(
        a_row(protocol="generation", sampling="greedy", outcome="error", error="no", values={}, choices={})
    )
    write_rows(tmp_path, rows)
    (path,) = score_paths(tmp_path, "arc_easy", "loglikelihood")
    frame, scorer = read_score_rows(path, ["acc"])
    assert scorer == SCORER
    assert frame["doc_id"].tolist() == ["0000", "0001", "0002"]
    assert frame["context"].tolist() == [NO_CONTEXT, 128, 128]
    assert frame["value.acc"].tolist() == [1, 1, 1]
    assert frame["value.acc_norm"].tolist() == [0, 0, 0]
    assert frame["row"].tolist() == [1, 2, 3]
    assert frame["cluster"].tolist() == ["c1"] * 3
    assert {number: ScoreRow(**row) for number, row in read_rows(path, [3, 2]).items()} == {
        2: rows[1],
        3: rows[2],
    }
    (other,) = score_paths(tmp_path, "arc_easy", "generation")
    assert ScoreRow(**read_rows(other)[1]) == rows[3]
    assert score_paths(tmp_path, "arc", "generation") == []


@settings(max_examples=12, deadline=None)
@given(
    detail=st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists)),
    value=st.floats(allow_nan=False, allow_infinity=False),
    label=st.text(min_size=1).filter(lambda text: text.isprintable()),
    outcome=st.sampled_from(OUTCOMES),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, detail: dict, value: float, label: str, outcome: str
) -> None:
    error = "why" if outcome == "error" else None
    row = a_row(
        detail=detail, values={"acc": value}, choices={}, checkpoint=label, outcome=outcome, error=error
    )
    run = tmp_path_factory.mktemp("run")
    write_rows(run, [row])
    (path,) = score_paths(run, "arc_easy", "loglikelihood")
    assert ScoreRow(**read_rows(path)[1]) == row
    before = path.read_bytes()
    write_rows(run, [row])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"doc_id": None}, "row 2: 'doc_id' is missing"),
        ({"doc_id": ""}, "row 2: 'doc_id' is empty"),
        ({"values": {"acc": float("nan")}}, "row 2: 'acc' is not a finite number"),
        ({"values": {"acc": float("inf"), "acc_norm": 1.0}}, "row 2: 'acc' is not a finite number"),
        ({"chance": float("nan")}, "row 2: 'chance' is not a finite number"),
        ({"values": {}}, "row 2: 'values' lacks acc"),
        ({"values": {"accc": 1.0}}, "row 2: 'values' lacks acc"),
        ({"outcome": "fine"}, "row 2: 'outcome' = 'fine'; expected one of ok"),
        ({"protocol": "ppl"}, "row 2: another protocol than row 1 ('loglikelihood')"),
        ({"benchmark": "piqa"}, "row 2: another benchmark than row 1 ('arc_easy')"),
        ({"weights_id": "x"}, "row 2: another weights_id than row 1"),
        ({"doc_id": "0000"}, "row 2: repeats the key of row 1 (gla, document 0000, seed 0)"),
    ],
)
def test_invalid_row_is_refused_with_file_and_row(tmp_path: Path, bad: dict, message: str) -> None:
    path = file_of(tmp_path, {}, bad, {})
    with pytest.raises(DataError, match=r"arc_easy\.loglikelihood\.f+\.parquet") as caught:
        read_score_rows(path, ["acc"])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choices": {"acc": -1}}, "choice -1 of 'acc'"),
        ({"choices": {"f1": 1}}, "choice 1 of 'f1'"),
        ({"outcome": "error", "values": {}, "choices": {}}, "'error' = None, though the outcome is 'error'"),
        ({"error": "no"}, "'error' = 'no', though the outcome is 'ok'"),
        ({"values": {}, "choices": {}}, "no 'values'"),
        ({"values": {"acc": True}, "choices": {}}, "'acc' = True"),
        ({"fingerprint": "a/b"}, "'fingerprint' = 'a/b'"),
    ],
)
def test_invalid_row_cannot_be_made(change: dict, message: str) -> None:
    with pytest.raises(DataError) as caught:
        a_row(**change)
    assert message in str(caught.value)


def test_error_row_may_have_no_values(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"values": {}, "choices": {}, "outcome": "error", "error": "no"}, {})
    assert read_score_rows(path, ["acc"])[0]["value.acc"].isna().tolist() == [True, False]
    only = file_of(tmp_path, {"values": {}, "choices": {}, "outcome": "error", "error": "no"})
    assert read_score_rows(only, ["acc"])[0]["value.acc"].isna().tolist() == [True]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def _rename(path: Path) -> None:
    path.rename(path.with_name(f"arc_easy.loglikelihood.{'g' * 16}.parquet"))


def _strip(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(path).replace_schema_metadata(), path)


def _drop(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(path).drop_columns(["seed"]), path)


def _another_schema(path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    value = table.schema.metadata[b"evalsuite"].replace(b'"schema": 3', b'"schema": 9')
    pq.write_table(table.replace_schema_metadata({b"evalsuite": value}), path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "no parquet|no log-likelihood scores"),
        (_truncate, "not a parquet file"),
        (lambda path: path.write_bytes(b""), "not a parquet file"),
        (_rename, "has score rows of arc_easy, loglikelihood, fingerprint ffff"),
        (_strip, "not a score file"),
        (_drop, "column 'seed' is missing"),
        (_another_schema, "scores of schema 9, this evalsuite reads 3; repeat `evalsuite run"),
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(file_of(tmp_path, {}, {}))
    with pytest.raises(DataError, match=message):
        read_run_scores(tmp_path, "arc_easy", "loglikelihood")
    assert all(
        read_info(path) is None or message.startswith(("has", "column"))
        for path in tmp_path.rglob("*.parquet")
    )


def test_rows_that_differ_in_any_key_field_are_distinct(tmp_path: Path) -> None:
    base = a_row()
    other: dict[str, Any] = {"seed": 1, "context": 512}
    varying = [name for name in KEY if name not in ("benchmark", "protocol", "weights_id", "fingerprint")]
    variants = [replace(base, **{name: other.get(name, "other")}) for name in varying]
    write_rows(tmp_path, [base, *variants, replace(base, fingerprint="other")])
    assert len(read_run_scores(tmp_path, "arc_easy", "loglikelihood")) == 2 + len(variants)
    assert len(score_paths(tmp_path, "arc_easy", "loglikelihood")) == 2


def test_metadata_names_scorer_and_inputs(tmp_path: Path) -> None:
    path = file_of(tmp_path, {}, {})
    assert open_score_file(path)[1] == info_of([1, 2])

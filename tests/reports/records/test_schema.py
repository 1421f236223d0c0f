"""Records: what is written is read back; what is dubious is refused by file and line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.records.reading import NO_CONTEXT, read_lines, read_score_rows, scored_keys
from evalsuite.reports.records.schema import KEY, ScoreRow, append_score_rows, scores_path


def a_row(**changes: Any) -> ScoreRow:
    """A record, with changes."""
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
        "detail": {"choices": [-1.5, -2.0]},
    }
    return ScoreRow(**keys | changes)


def journal(tmp_path: Path, lines: list[str]) -> Path:
    """A journal of the given lines."""
    path = tmp_path / "arc_easy.loglikelihood.jsonl"
    path.write_text("".join(lines))
    return path


def line(**changes: Any) -> str:
    """A line of JSON, with changes that Record itself would refuse."""
    row = a_row().row()
    return json.dumps({key: value for key, value in (row | changes).items() if value is not ...}) + "\n"


def test_appended_rows_are_read_back(tmp_path: Path) -> None:
    records = [a_row(doc_id=f"{i:04}", context=128 if i else None) for i in range(3)]
    records.append(a_row(doc_id="0004", protocol="generation", sampling="greedy", outcome="looped"))
    append_score_rows(tmp_path, records)
    path = scores_path(tmp_path, "arc_easy", "loglikelihood")
    frame = read_score_rows(path, ["acc"])
    assert frame["doc_id"].tolist() == ["0000", "0001", "0002"]
    assert frame["context"].tolist() == [NO_CONTEXT, 128, 128]
    assert frame["value.acc"].tolist() == [1, 1, 1]
    assert frame["value.acc_norm"].tolist() == [0, 0, 0]
    assert frame["line"].tolist() == [1, 2, 3]
    assert read_lines(path, [2])[2]["detail"] == {"choices": [-1.5, -2.0]}
    assert ScoreRow.from_row(read_lines(path, [3])[3]) == records[2]
    assert scored_keys(tmp_path, "arc_easy", "generation") == {records[3].key}
    assert scored_keys(tmp_path, "arc_easy", "loglikelihood") == {r.key for r in records[:3]}
    assert scored_keys(tmp_path, "piqa", "generation") == set()


@settings(max_examples=30, deadline=None)
@given(
    detail=st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists)),
    value=st.floats(allow_nan=False, allow_infinity=False),
    label=st.text(min_size=1).filter(lambda text: text.isprintable()),
    outcome=st.sampled_from(OUTCOMES),
)
def test_json_round_trip(detail: dict, value: float, label: str, outcome: str) -> None:
    record = a_row(detail=detail, values={"acc": value}, checkpoint=label, outcome=outcome)
    assert ScoreRow.from_row(json.loads(json.dumps(record.row(), allow_nan=False))) == record


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = journal(tmp_path, [line(), line(doc_id="0002")[:-20]])
    assert len(read_score_rows(path)) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            line(schema=1),
            "line 2: score row: 'schema' = 1; this evalsuite reads and writes 2: repeat the eval",
        ),
        (line(schema=...), "line 2: score row lacks schema"),
        (line(doc_id=...), "line 2: score row lacks doc_id"),
        (line(doc_id=None), "line 2: score row: 'doc_id' = None"),
        (line(values={"acc": float("nan")}), "line 2: 'NaN' is not a number"),
        (line(values={"acc": float("inf"), "acc_norm": 1.0}), "line 2: 'Infinity' is not a number"),
        (line(chance=float("nan")), "line 2: 'NaN' is not a number"),
        (line(values={"acc": "1"}), "line 2: score row 0001: 'acc' = '1'; expected a finite number"),
        (line(values={"acc": True}), "line 2: score row 0001: 'acc' = True"),
        (line(values={}), "line 2: score row 0001: no 'values', though the outcome is 'ok'"),
        (line(values={"accc": 1.0}), "line 2: 'values' lacks acc; did you mean 'accc'"),
        (line(outcome="fine"), "line 2: score row: 'outcome' = 'fine'; expected one of ok"),
        (line(protocol="ppl"), "line 2: score row: 'protocol' = 'ppl'"),
        (line(benchmark="piqa"), "line 2: benchmark 'piqa' in a journal of 'arc_easy'"),
        (line(doc_id="0000"), "line 2: repeats the key of line 1"),
        (line(seed=1.5), "line 2: score row: seed 1.5"),
        (line(extra=1), None),
        ("[1, 2]\n", "line 2: not a JSON object"),
        ("{\n", "line 2: Expecting property name"),
        ("\n", "line 2: Expecting value"),
        (line(doc_id="0002").strip() + line(doc_id="0003"), "line 2: Extra data"),
    ],
)
def test_invalid_line_is_refused_with_file_and_line(tmp_path: Path, bad: str, message: str | None) -> None:
    path = journal(tmp_path, [line(doc_id="0000"), bad, line(doc_id="0009")])
    if message is None:
        assert len(read_score_rows(path, ["acc"])) == 3
        return
    with pytest.raises(DataError, match=r"arc_easy\.loglikelihood\.jsonl") as caught:
        read_score_rows(path, ["acc"])
    assert message in str(caught.value)


def test_error_row_may_have_no_values(tmp_path: Path) -> None:
    path = journal(tmp_path, [line(values={}, outcome="error"), line(doc_id="0002")])
    assert read_score_rows(path, ["acc"])["value.acc"].isna().tolist() == [True, False]


def test_missing_or_empty_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_score_rows(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match="no score rows"):
        read_score_rows(journal(tmp_path, []))


def test_rows_that_differ_in_any_key_field_are_distinct(tmp_path: Path) -> None:
    base = a_row()
    other: dict[str, Any] = {"seed": 1, "context": 512, "protocol": "loglikelihood", "benchmark": "arc_easy"}
    variants = [
        replace(base, **{name: other.get(name, "other")})
        for name in KEY
        if name not in ("benchmark", "protocol")
    ]
    append_score_rows(tmp_path, [base, *variants])
    assert len(read_score_rows(scores_path(tmp_path, "arc_easy", "loglikelihood"))) == 1 + len(variants)

"""report.json in short form says what the report says."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.reports.exports.compact_json import compact_json
from evalsuite.reports.exports.report_json import report_json
from evalsuite.reports.report import build_report


def unpacked(value: Any, notes: list[str]) -> Any:
    """Undo the short form."""
    if isinstance(value, list):
        return [unpacked(each, notes) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"undefined"}:
        return {"undefined": notes[value["undefined"]]}
    if set(value) == {"point", "low", "high", "method"}:
        value = value | {"method": notes[value["method"]]}
        if isinstance(value["point"], list):
            ends = zip(value["point"], value["low"], value["high"], strict=True)
            return [
                {"point": point, "low": low, "high": high, "method": value["method"]}
                for point, low, high in ends
            ]
        return value
    return {key: unpacked(each, notes) for key, each in value.items()}


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, each in expected.items():
            assert_close(found[key], each)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-11, abs=1e-15)
    else:
        assert found == expected


def test_nothing_is_lost(small_run: Path) -> None:
    report = build_report([small_run])
    text = compact_json(report_json(report))
    stored = json.loads(text)
    notes = stored.pop("notes")
    assert len(notes) == len(set(notes))
    expected = json.loads(json.dumps(report_json(report)))
    assert_close(unpacked(stored, notes), expected)
    assert len(text) < 0.7 * len(json.dumps(expected, indent=2))
    rows = [line for line in text.splitlines() if line.startswith('{"checkpoint":')]
    assert len(rows) >= len(report.scores) + len(report.averages)
    assert all(json.loads(row.rstrip(",")) for row in rows)


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        compact_json({"score": float("nan")})

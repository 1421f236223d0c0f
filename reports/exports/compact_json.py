"""report.json as text: complete, but a third as long as JSON of one value a line.

Numbers have 12 significant digits, and every row is one line. The methods of intervals and the reasons why
estimates are undefined, a few dozen texts that thousands of rows share, stand once in `notes`; `method` and
`undefined` are indices into it. The curve of a row is one list per end of its intervals.
"""

import json
from collections.abc import Mapping
from typing import Any

DIGITS = 12
_ENDS = ("point", "low", "high")


def compact_json(report: Mapping[str, Any]) -> str:
    """Serialize what `report_json` returns.

    Raises:
        ValueError: a number is not finite.
    """
    notes: dict[str, int] = {}
    packed = {key: _packed(value, notes) for key, value in report.items()}
    members = [f"{_dumps(key)}: {_member(value)}" for key, value in (packed | {"notes": list(notes)}).items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _member(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _dumps(value)
    return "[\n" + ",\n".join(map(_dumps, value)) + "\n]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _packed(value: Any, notes: dict[str, int]) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        if not _is_curve(value):
            return [_packed(each, notes) for each in value]
        value = {**{end: [each[end] for each in value] for end in _ENDS}, "method": value[0]["method"]}
    if not isinstance(value, dict):
        return value
    packed = {key: _packed(each, notes) for key, each in value.items()}
    note = "method" if _is_interval(value) else "undefined"
    if note == "method" or set(value) == {"undefined"}:
        packed[note] = notes.setdefault(value[note], len(notes))
    return packed


def _is_interval(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {*_ENDS, "method"}


def _is_curve(values: list[Any]) -> bool:
    """Whether these are intervals of one method."""
    return bool(values) and all(map(_is_interval, values)) and len({each["method"] for each in values}) == 1

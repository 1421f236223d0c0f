"""Read fields of foreign JSON: a wrong one is refused with file, field and value."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.foundation import DataError, parse_json

T = TypeVar("T")
SHOWN = 80
"""Characters of an invalid value that a message shows."""


class Fields:
    """A JSON object of a log, and the place that messages name.

    Args:
        value: the object.
        place: file, and line or key inside it.

    Raises:
        DataError: `value` is no object.
    """

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise DataError(f"{place}: expected a JSON object, found {_shown(value)}")
        self.value = value
        self.place = place

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return a field of a type; a boolean is no number.

        Raises:
            DataError: missing without a default, or of another type.
        """
        if name not in self.value and default is not None:
            return default
        if name not in self.value:
            raise DataError(f"{self.place}: '{name}' is missing")
        found = self.value[name]
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise DataError(f"{self.place}: '{name}' = {_shown(found)}; expected {_NAMES[kind]}")
        return found

    def fields(self, name: str, *, required: bool = True) -> "Fields":
        """Return an object inside this one; an empty one if it is absent or null and not required."""
        found = self.value.get(name)
        if found is None and not required:
            return Fields({}, f"{self.place}: '{name}'")
        if found is None:
            raise DataError(f"{self.place}: '{name}' is missing")
        return Fields(found, f"{self.place}: '{name}'")

    def number(self, name: str) -> float:
        """Return a finite number; true and false count as 1 and 0."""
        found = self.real(name)
        if not math.isfinite(found):
            raise DataError(f"{self.place}: '{name}' = {found}; expected a finite number")
        return found

    def real(self, name: str) -> float:
        """Return a number that may be infinite or NaN; true and false count as 1 and 0."""
        found = self.value.get(name)
        try:
            if isinstance(found, bool | int | float):
                return float(found)
        except OverflowError:
            pass
        raise DataError(f"{self.place}: '{name}' = {_shown(found)}; expected a finite number")


_NAMES: dict[type, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def read_object(path: Path) -> Fields:
    """Read a JSON file that holds an object. Raises DataError for anything else."""
    try:
        return parse_object(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def parse_object(data: bytes, place: str) -> Fields:
    """Parse JSON that holds an object; NaN is kept, so that the field that has it can be named.

    Raises:
        DataError: not JSON in UTF-8, no object, or an object with a key twice.
    """
    try:
        return Fields(parse_json(data, allow_nan=True), place)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error})") from error


def read_lines(path: Path) -> Iterator[Fields]:
    """Read the objects of a JSON-lines file; empty lines are skipped.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield parse_object(line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(each)


def refuse_other_average(
    place: str, metric: str, reported: Any, found: float, *, rounding: float = 1e-6, count: int
) -> None:
    """Refuse samples that do not give the score that their log reports.

    Args:
        place: the file of the samples.
        metric: name of the metric in the log.
        reported: its score in the log; anything but a finite number cannot be compared.
        found: the score of the samples.
        rounding: largest difference that the harness' own rounding makes.
        count: number of samples.

    Raises:
        DataError: they differ.
    """
    if isinstance(reported, bool) or not isinstance(reported, int | float):
        return
    reported = Fields({metric: reported}, place).real(metric)
    if not math.isfinite(reported):
        return
    if not abs(found - reported) <= rounding * max(1.0, abs(reported)):
        raise DataError(
            f"{place}: {count:,} samples have '{metric}' = {found:.6g}, but the log reports {reported:.6g}: "
            "the file lost samples or belongs to another evaluation; restore it, or evaluate again"
        )


def weights_in_group(
    place: str,
    metric: str,
    reported: float,
    scores: Mapping[str, float],
    sizes: Mapping[str, float],
    *,
    rounding: float,
) -> dict[str, tuple[float | None, ...]]:
    """Weights of the members of a group in the score that its log reports.

    Logs do not state them: the score tells whether members weigh as many documents as they have, or the same.

    Args:
        place: file of the log.
        metric: name of the metric.
        reported: score of the group.
        scores: member → score.
        sizes: member → number of documents.
        rounding: largest difference that the harness' own rounding makes.

    Returns:
        Member → its number of documents, or None if all members weigh the same; both if the score fits both.

    Raises:
        DataError: neither gives the reported score.
    """
    total = sum(sizes[name] for name in scores)
    by_size = sum(scores[name] * sizes[name] for name in scores) / total if total else 0.0
    plain = sum(scores.values()) / len(scores)
    fits_size, fits_plain = (abs(each - reported) <= rounding for each in (by_size, plain))
    if not (fits_size or fits_plain):
        raise DataError(
            f"{place}: '{metric}' = {reported:.6g} is neither the average of its parts by documents "
            f"({by_size:.6g}) nor the plain one ({plain:.6g}), so that their weights are unknown; import "
            "other benchmarks only (--benchmark)"
        )
    plainly = (None,) if fits_plain else ()
    return {name: (*((sizes[name],) if fits_size else ()), *plainly) for name in scores}

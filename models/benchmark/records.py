"""`efficiency.jsonl` of a run folder: measurements, one line each, the latest of each key."""

from collections.abc import Iterator
from pathlib import Path

from evalsuite.foundation import DataError, locked, read_jsonl, write_text
from evalsuite.foundation.hashing import canonical_json
from evalsuite.models.benchmark.points import SCHEMA, Measurement

FILE = "efficiency.jsonl"


def read_measurements(run: Path) -> list[Measurement]:
    """The measurements of a run folder; empty without a file.

    Raises:
        DataError: a line of another schema.
    """
    return list(_rows(run / FILE))


def save_measurement(run: Path, measured: Measurement) -> None:
    """Write a measurement to a run folder, replacing an earlier one with the same key.

    Raises:
        DataError: the file has lines of another schema.
        RunFolderError: the file cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    path = run / FILE
    with locked(path.with_name(f".{FILE}.lock")):
        kept = [each for each in _rows(path) if each.key != measured.key]
        lines = [canonical_json(each.to_row()) for each in (*kept, measured)]
        write_text(path, "".join(f"{line}\n" for line in lines))


def _rows(path: Path) -> Iterator[Measurement]:
    for number, row in enumerate(read_jsonl(path), 1):
        if row.get("schema") != SCHEMA:
            raise DataError(
                f"{path}, line {number}: schema {row.get('schema')!r}; this evalsuite writes {SCHEMA}: "
                "delete the file and repeat `evalsuite bench`"
            )
        try:
            yield Measurement.from_row(row)
        except TypeError as error:
            raise DataError(
                f"{path}, line {number}: {error}; delete the line and repeat `evalsuite bench`"
            ) from error

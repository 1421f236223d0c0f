"""Points of a sweep, and the file that keeps what was measured at them."""

from dataclasses import asdict, dataclass
from pathlib import Path

from evalsuite.foundation import ConfigError, locked, write_text
from evalsuite.foundation.efficiency import FILE, EfficiencyRow, Kind, read_measurements
from evalsuite.foundation.hashing import canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement to make.

    `request`: prefill `batch` prompts of `context` tokens and decode from there. `decode`: decode `batch`
    sequences together, each with a synthetic cache of `context` tokens.
    """

    kind: Kind
    context: int
    batch: int = 1
    repeats: int = 3
    """Timed prefills; a decode step is always repeated often."""

    def __post_init__(self) -> None:
        if min(self.context, self.batch, self.repeats) < 1:
            raise ConfigError(
                f"context {self.context}, batch {self.batch}, {self.repeats} repeats: each must be at least 1"
            )


def save_measurement(run: Path, measured: EfficiencyRow) -> None:
    """Write a measurement to a run folder, replacing an earlier one with the same key.

    Raises:
        DataError: the file has lines of another schema, or lines that are no measurements.
        RunFolderError: the file cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    path = run / FILE
    with locked(path.with_name(f".{FILE}.lock")):
        kept = [each for each in read_measurements(run) if each.key != measured.key]
        lines = [canonical_json(asdict(each)) for each in (*kept, measured)]
        write_text(path, "".join(f"{line}\n" for line in lines))

"""Loss curves: `training/<label>.jsonl` of a run folder, from the students' own folders or put there by hand.

Needs the standard library alone: where nobody reads reports, a curve is still read before it is kept.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalsuite.foundation import DataError


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of one student along one stage of its training."""

    label: str
    stage: str
    tokens: tuple[int, ...]
    """Trained on so far, in the whole run."""
    values: tuple[float, ...]


def curve_path(run: Path, label: str) -> Path:
    """Where a run keeps the curve of the checkpoint that it calls `label`; a slash is written ``%2F``."""
    return Path(run) / "training" / f"{label.replace('%', '%25').replace('/', '%2F')}.jsonl"


def label_of(path: Path) -> str:
    """Whose curve a file holds, by its name."""
    return path.stem.replace("%2F", "/").replace("%25", "%")


def parse_losses(data: bytes, label: str, source: str) -> list[Losses]:
    """The losses of one student, by stage in the order of training.

    Args:
        data: the file; one JSON object with stage, tokens and loss per line, other keys are not read.
        source: its name in errors.

    Raises:
        DataError: a line that is no step of a training, torn ones among them.
    """
    stages: dict[str, tuple[list[int], list[float]]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = json.loads(line.decode())
            stage, tokens, loss = str(row["stage"]), int(row["tokens"]), float(row["loss"])
            if not math.isfinite(loss):
                raise ValueError(f"loss {loss}")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{source}, line {number}: not a step of a training ({error!r})") from error
        steps = stages.setdefault(stage, ([], []))
        steps[0].append(tokens)
        steps[1].append(loss)
    return [Losses(label, stage, tuple(at), tuple(values)) for stage, (at, values) in stages.items()]


def read_losses(runs: Sequence[Path], labels: Sequence[Mapping[str, str]] = ()) -> list[Losses]:
    """Losses of all runs, by student and stage in the order of training.

    Args:
        runs: run folders.
        labels: per run, what the report calls the checkpoints that the run calls by the keys. One that
            several runs asked has its curve once, as the first of them keeps it.

    Raises:
        DataError: as `parse_losses`.
    """
    taken: set[str] = set()
    losses: list[Losses] = []
    for number, run in enumerate(runs):
        known = labels[number] if number < len(labels) else {}
        for path in sorted((Path(run) / "training").glob("*.jsonl")):
            mine = label_of(path)
            label = known.get(mine, mine)
            found = parse_losses(path.read_bytes(), label, str(path))
            # Of a student that was not asked only the name is known, which others may have.
            new = label not in taken if mine in known else any(each not in losses for each in found)
            if mine in known:
                taken.add(label)
            if new:
                losses += found
    return losses

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
        DataError: a line that is no step of a training, torn ones among them; no line at all.
    """
    stages: dict[str, tuple[list[int], list[float]]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = json.loads(line.decode())
            tokens, loss = row["tokens"], row["loss"]
            if type(tokens) is not int or type(loss) not in (int, float) or not math.isfinite(loss):
                raise ValueError(f"tokens {tokens!r}, loss {loss!r}")
            steps = stages.setdefault(str(row["stage"]), ([], []))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{source}, line {number}: not a step of a training ({error!r})") from error
        steps[0].append(tokens)
        steps[1].append(float(loss))
    if not stages:
        raise DataError(f"{source}: no step of a training in it")
    return [Losses(label, stage, tuple(at), tuple(values)) for stage, (at, values) in stages.items()]


def read_losses(runs: Sequence[Path], labels: Sequence[Mapping[str, str]] = ()) -> list[Losses]:
    """Losses of all runs, by student and stage in the order of training.

    Args:
        runs: run folders.
        labels: per run, what the report calls the checkpoints that the run calls by the keys. A checkpoint
            of several runs, or one that was called otherwise before, has its curve once.

    Raises:
        DataError: as `parse_losses`.
    """
    files: list[tuple[str, bool, list[Losses]]] = []
    for number, run in enumerate(runs):
        known = labels[number] if number < len(labels) else {}
        for path in sorted((Path(run) / "training").glob("*.jsonl")):
            mine = label_of(path)
            label = known.get(mine, mine)
            files.append((label, mine in known, parse_losses(path.read_bytes(), label, str(path))))
    drawn = {_steps(found) for _, evaluated, found in files if evaluated}
    taken: set[str] = set()
    losses: list[Losses] = []
    for label, evaluated, found in files:
        steps = _steps(found)
        if label in taken if evaluated else steps in drawn:
            continue
        if evaluated:
            taken.add(label)
        drawn.add(steps)
        losses += found
    return losses


def _steps(losses: Sequence[Losses]) -> tuple[tuple[str, tuple[int, ...], tuple[float, ...]], ...]:
    """A curve without its label."""
    return tuple((each.stage, each.tokens, each.values) for each in losses)

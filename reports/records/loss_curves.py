"""Loss curves: `training/<label>.jsonl` of a run folder, copied from the students' folders or added by hand.

The steps at which a recipe's `validation` is due also have measurements on held-out documents.

Standard library only, because the infer phase validates a curve before it copies it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalsuite.foundation import DataError, parse_json

VALIDATION = ("validation_kl", "validation_ppl")
"""Measurements on held-out documents: KL(teacher ‖ student) in nats per token, and perplexity."""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses of one student during one stage of its training."""

    label: str
    stage: str
    tokens: tuple[int, ...]
    """Tokens trained on so far, over all stages."""
    values: tuple[float, ...]
    validation: dict[str, tuple[tuple[int, float], ...]]
    """Measurement → (tokens, value) of the steps that have it."""


def loss_curve_path(run: Path, label: str) -> Path:
    """Path of the curve of the checkpoint `label` in a run folder; a slash is encoded as ``%2F``."""
    return Path(run) / "training" / f"{label.replace('%', '%25').replace('/', '%2F')}.jsonl"


def label_of(path: Path) -> str:
    """Return the checkpoint label of a curve from its file name."""
    return path.stem.replace("%2F", "/").replace("%25", "%")


def parse_loss_curves(data: bytes, label: str, source: str) -> list[LossCurve]:
    """Parse the losses of one student, by stage in the order of training.

    Args:
        data: the file; one JSON object with stage, tokens and loss per line, some with a number for
            those of `VALIDATION`; other keys are ignored.
        label: label of the student.
        source: name of the file in error messages.

    Raises:
        DataError: a line is not a training step (an incomplete last line included).
    """
    stages: dict[str, tuple[list[int], list[float], dict[str, list[tuple[int, float]]]]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = parse_json(line, allow_nan=True)
            stage, tokens = str(row["stage"]), int(row["tokens"])
            names = ("loss", *(name for name in VALIDATION if name in row))
            values = {name: float(row[name]) for name in names}
            for name, value in values.items():
                if not math.isfinite(value):
                    raise ValueError(f"{name} {value}")
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise DataError(f"{source}, line {number}: not a training step ({error!r})") from error
        at, losses, validation = stages.setdefault(stage, ([], [], {}))
        at.append(tokens)
        losses.append(values.pop("loss"))
        for name, value in values.items():
            validation.setdefault(name, []).append((tokens, value))
    return [
        LossCurve(
            label,
            stage,
            tuple(at),
            tuple(losses),
            {name: tuple(points) for name, points in validation.items()},
        )
        for stage, (at, losses, validation) in stages.items()
    ]


def read_loss_curves(
    runs: Sequence[Path], labels: Sequence[Mapping[str, str | None]] = ()
) -> list[LossCurve]:
    """Read the losses of all runs, by student and stage in the order of training.

    Args:
        runs: run folders.
        labels: per run, a map from the run's own labels to those of the report, None for a checkpoint that is
            left out. A checkpoint that several runs evaluated has one curve, that of the first run. A curve
            of another student has the name of its run after its label, where that is another one's.

    Raises:
        DataError: as `parse_losses`.
    """
    evaluated: dict[str, list[LossCurve]] = {}
    others: list[tuple[Path, str, list[LossCurve]]] = []
    for number, run in enumerate(runs):
        known = labels[number] if number < len(labels) else {}
        for path in sorted((Path(run) / "training").glob("*.jsonl")):
            mine = label_of(path)
            label = known.get(mine, mine)
            if label is None:
                continue
            found = parse_loss_curves(path.read_bytes(), label, str(path))
            if mine in known:
                evaluated.setdefault(label, found)
            else:
                others.append((Path(run), mine, found))
    losses = [each for found in evaluated.values() for each in found]
    seen = list(losses)
    taken = {label for each in labels for label in each.values()} | {*evaluated}
    for run, mine, found in others:
        if all(each in seen for each in found):
            continue
        # A student that was not evaluated is known by its label only, which another one may have.
        names = (
            mine,
            f"{mine} ({run.name})",
            *(f"{mine} ({run.name}, {n})" for n in range(2, len(others) + 2)),
        )
        label = next(name for name in names if name not in taken)
        taken.add(label)
        seen += found
        losses += [replace(each, label=label) for each in found]
    return sorted(losses, key=lambda each: each.label)

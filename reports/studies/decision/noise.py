"""What noise on the teacher's log-likelihoods alone would do to a contrast of two ways of ranking.

An easy question is answered right by a wide margin and stands more noise than a hard one, so that shares
differ between both without any loss of recall in particular.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evalsuite.foundation import DataError
from evalsuite.reports.records.score_files import read_rows, score_paths
from evalsuite.reports.studies.decision.effects import Cell, Floats, Run, mean_share
from evalsuite.reports.studies.decision.protocol import Protocol

CONTRAST = "distractors"
DRAWS = 50
MOST = 200.0
"""Largest standard deviation that is tried, in nats."""


class Noise(NamedTuple):
    """The contrast of a family, and that of its teacher with noise of the same easy share."""

    teacher: str
    family: str
    sd: float
    """Standard deviation of the noise on each choice, in nats."""
    found: float
    """Mean share of the family's runs by the easy way minus that by the hard one, in points."""
    noise: float
    """The same of the noisy teacher."""


class Choices(NamedTuple):
    """Log-likelihoods [documents, choices] of one cell, and the right choice [documents]."""

    logprobs: Floats
    right: np.ndarray

    def accuracy(self, sd: float, normal: Floats) -> float:
        """With `sd` times `normal` [draws, documents, choices] added: the share of right choices."""
        picked = (self.logprobs + sd * normal).argmax(-1)
        return float((picked == self.right).mean())


def noise_alone(
    run: Path,
    protocol: Protocol,
    name: str,
    half: str,
    label: str,
    cells: Sequence[Cell],
    runs: Sequence[Run],
) -> list[Noise]:
    """Return the contrast of each family with that of noise which fits its share by the easy way.

    Args:
        run: run folder with the scores of the teacher.
        protocol: what is compared.
        name: of the teacher in the protocol; label: in the run.
        half: of the needles.
        cells: admitted needles.
        runs: of the students.

    Raises:
        DataError: a row without the log-likelihoods of its choices.
    """
    if not cells:
        return []
    hard, easy = protocol.contrasts[CONTRAST].ways
    choices = {
        (cell.name, way): read_choices(run, protocol, half, label, cell.name, way)
        for cell in cells
        for way in (hard, easy)
    }
    draw = np.random.default_rng(0).standard_normal
    normal = {key: draw((DRAWS, *each.logprobs.shape)) for key, each in choices.items()}
    leads = {(cell.name, way): cell.lead(way)[0] / 100 for cell in cells for way in (hard, easy)}

    def share(sd: float, way: str) -> float:
        """Mean over cells, in percent of the teacher's lead."""
        keys = [(cell.name, way) for cell in cells]
        chance = protocol.ways[way].chance
        return float(np.mean([100 * (choices[k].accuracy(sd, normal[k]) - chance) / leads[k] for k in keys]))

    rows = []
    for family in dict.fromkeys(protocol.teachers[name].students.values()):
        own = [each for each in runs if protocol.teachers[name].students[each.student] == family]
        if not own:
            continue
        kept = {way: mean_share(cells, own, way) for way in (hard, easy)}
        low, high = 0.0, MOST
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if share(middle, easy) > kept[easy] else (low, middle)
        rows.append(Noise(name, family, high, kept[easy] - kept[hard], share(high, easy) - share(high, hard)))
    return rows


def read_choices(run: Path, protocol: Protocol, half: str, label: str, cell: str, way: str) -> Choices:
    """Return the teacher's log-likelihoods in one cell, named `TASK CONTEXT`. Raises as `noise_alone`."""
    task, _, context = cell.rpartition(" ")
    ranking = protocol.ways[way]
    benchmark = ranking.benchmark.format(task=task, half=protocol.needles.halves[half])
    rows = {
        row["doc_id"]: row["detail"]
        for path in score_paths(run, benchmark, ranking.protocol)
        for row in read_rows(path).values()
        if (row["checkpoint"], row["context"]) == (label, int(context))
    }
    details: list[Mapping[str, Any]] = [rows[each] for each in sorted(rows)]
    if not details or not all("logprobs" in each and "gold" in each for each in details):
        raise DataError(f"{run}: score rows of {benchmark} at {context} lack the choices of '{label}'")
    return Choices(
        np.array([each["logprobs"] for each in details]), np.array([_first(each["gold"]) for each in details])
    )


def _first(gold: int | Sequence[int]) -> int:
    return gold if isinstance(gold, int) else int(gold[0])

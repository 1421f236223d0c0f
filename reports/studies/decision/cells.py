"""Score rows of a run, as the cells of the protocol: the same documents by every way."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.records.score_files import read_rows, score_paths
from evalsuite.reports.studies.decision.effects import Cell, Floats, Run
from evalsuite.reports.studies.decision.protocol import Protocol

Scores = Mapping[str, Mapping[str, float]]
"""Checkpoint → document → score."""


def needle_cells(
    run: Path, protocol: Protocol, half: str, teacher: str, labels: Mapping[str, Run]
) -> list[Cell]:
    """Return one cell per task and context of needles.

    Args:
        run: a run folder with scores.
        protocol: what is read.
        half: of the needles.
        teacher: label of the teacher.
        labels: label of a checkpoint → its run.

    Raises:
        DataError: a checkpoint without a document that the teacher has.
    """
    cells = []
    for task in protocol.needles.tasks:
        for context in protocol.needles.contexts:
            found = {}
            for name, way in protocol.ways.items():
                benchmark = way.benchmark.format(task=task, half=protocol.needles.halves[half])
                found[name] = read_scores(run, benchmark, way.protocol, way.metric, context)
            chance = {name: way.chance for name, way in protocol.ways.items()}
            cells.append(cell(f"{task} {context}", found, chance, teacher, labels))
    return cells


def short_task_cells(run: Path, protocol: Protocol, teacher: str, labels: Mapping[str, Run]) -> list[Cell]:
    """Return one cell per short task under log-likelihood, plain and padded. Raises as `needle_cells`."""
    cells = []
    for name, task in protocol.short_tasks.tasks.items():
        benchmarks = {"plain": name, "padded": name + protocol.short_tasks.suffix}
        found = {
            way: read_scores(run, benchmark, PROTOCOLS[0], task.metric)
            for way, benchmark in benchmarks.items()
        }
        cells.append(cell(name, found, dict.fromkeys(found, task.chance), teacher, labels))
    return cells


def completion_cells(
    run: Path,
    protocol: Protocol,
    chance: Mapping[str, Mapping[str, float]],
    teacher: str,
    labels: Mapping[str, Run],
) -> list[Cell]:
    """Return one cell per completion task that `chance` names, under both protocols.

    Args:
        run: as `needle_cells`.
        protocol: as `needle_cells`.
        chance: admitted benchmark → protocol → score of the best constant answer (`evalsuite admit`).
        teacher: as `needle_cells`.
        labels: as `needle_cells`.

    Raises:
        DataError: as `needle_cells`.
    """
    cells = []
    for name, metrics in protocol.completion_tasks.items():
        if name in chance:
            found = {way: read_scores(run, name, way, metric) for way, metric in metrics.items()}
            cells.append(cell(name, found, chance[name], teacher, labels))
    return cells


def read_scores(
    run: Path, benchmark: str, protocol: str, metric: str, context: int | None = None
) -> dict[str, dict[str, float]]:
    """Return checkpoint → document → score; a response without one counts as wrong."""
    found: dict[str, dict[str, float]] = {}
    for path in score_paths(run, benchmark, protocol):
        for row in read_rows(path).values():
            if row["context"] == context:
                found.setdefault(row["checkpoint"], {})[row["doc_id"]] = float(row["values"].get(metric, 0.0))
    return found


def cell(
    name: str,
    found: Mapping[str, Scores],
    chance: Mapping[str, float],
    teacher: str,
    labels: Mapping[str, Run],
) -> Cell:
    """Return the cell of the documents that the teacher has in every way.

    Raises:
        DataError: it has none, or a checkpoint lacks one of them.
    """
    documents = sorted(set.intersection(*(set(scores.get(teacher, {})) for scores in found.values())))
    if not documents:
        raise DataError(f"{name}: the teacher '{teacher}' has no document in all of {', '.join(found)}")

    def of(label: str) -> dict[str, Floats]:
        arrays = {}
        for way, scores in found.items():
            missing = [each for each in documents if each not in scores.get(label, {})]
            if missing:
                raise DataError(
                    f"{name}: '{label}' lacks {len(missing)} of {len(documents)} documents by {way}"
                )
            arrays[way] = np.array([scores[label][each] for each in documents])
        return arrays

    return Cell(name, of(teacher), {run: of(label) for label, run in labels.items()}, chance)

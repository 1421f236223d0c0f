"""The result tensor: the scores of all runs as arrays [checkpoints, seeds, documents], ready to be compared.

A cell is one benchmark under one protocol at one context, with the same documents and prompts for all of its
checkpoints. Students are in a cell with their teacher; teachers whose prompts differ have cells of their own.
A checkpoint without every planned document is in no cell, but in `ResultTensor.incomplete`, unless the
selection admits partial cells: these have the documents that all of their checkpoints have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.counting import Counting
from evalsuite.reports.records.coverage import (
    IncompleteCell,
    ScoredDocuments,
    comparable_groups,
    incomplete_warnings,
    refuse_more_than_planned,
)
from evalsuite.reports.records.merging import CellKey, CheckpointEntry, MergedPlan, merge_plans
from evalsuite.reports.records.reading import NO_CHOICE, NO_CONTEXT
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.score_files import FLAGS
from evalsuite.reports.records.score_rows import BenchmarkProtocol, ReadLog, collect_score_rows
from evalsuite.reports.statistics.paired import EQUAL


@dataclass(frozen=True, slots=True)
class ResultTensor:
    """All cells of a report, with the merged plan and the warnings."""

    merged: MergedPlan
    cells: tuple[Cell, ...]
    incomplete: tuple[IncompleteCell, ...]
    selection: RunSelection
    score_files: tuple[Path, ...]
    score_rows: int
    """Number of score rows read."""
    errors: dict[tuple[int, str, str], int]
    """(checkpoint, benchmark, protocol) → number of responses with outcome `error`"""
    warnings: tuple[str, ...]
    counting: Counting
    """Which cells have the requests of another, and count with it."""
    unread: Mapping[tuple[int, CellKey], str] = field(default_factory=dict)
    """(checkpoint, cell) → why the checkpoint does not read the cell's context"""

    @property
    def checkpoints(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints, each teacher followed by its students."""
        return self.merged.checkpoints

    def find(self, benchmark: str, protocol: str) -> list[Cell]:
        """List the cells of a benchmark under a protocol, by context."""
        return [c for c in self.cells if c.benchmark.name == benchmark and c.protocol == protocol]

    def unmeasured(self, checkpoint: int, key: CellKey) -> IncompleteCell | None:
        """Return why a planned cell is not measured for a checkpoint; None if it is, or is not planned."""
        return next(
            (each for each in self.incomplete if (each.checkpoint, each.key) == (checkpoint, key)), None
        )


def load_result_tensor(runs: Sequence[Path], selection: RunSelection | None = None) -> ResultTensor:
    """Read runs and arrange their scores.

    Args:
        runs: run folders.
        selection: teacher, checkpoints, partial cells and errors; default: complete cells, errors are wrong.

    Raises:
        DataError: no score rows, invalid ones (see `collect_score_rows`), or more documents than planned.
        RunFolderError, ConfigError: see `merge_plans`.
    """
    selection = selection or RunSelection()
    merged = merge_plans(runs, selection)
    planned, unread = merged.planned_cells(), merged.unread_cells()
    lacks_unread = selection.unread_contexts == "missing"
    log = ReadLog()
    cells: list[Cell] = []
    incomplete: list[IncompleteCell] = []
    for benchmark in merged.benchmarks:
        for protocol, plan in benchmark.protocols.items():
            source = BenchmarkProtocol(benchmark, protocol, plan)
            frame = collect_score_rows(source, merged, selection, log)
            for context in plan.contexts:
                key = benchmark.name, protocol, context
                found: list[Cell] = []
                lacking: list[IncompleteCell] = []
                if frame is not None:
                    part = frame[frame["context"] == (NO_CONTEXT if context is None else context)]
                    found, lacking = _cells(part, source, context, merged.checkpoints, selection, log)
                there = {i for cell in found for i in cell.present} | {each.checkpoint for each in lacking}
                lacking += [
                    IncompleteCell(i, *key, 0, plan.planned(context))
                    for i in range(len(merged.checkpoints))
                    if (i, key) in planned and i not in there
                ]
                lacking += [
                    IncompleteCell(i, *key, 0, plan.planned(context), f"it {unread[i, key]}")
                    for i in range(len(merged.checkpoints))
                    if lacks_unread and (i, key) in unread and i not in there
                ]
                if frame is not None:
                    log.warnings += incomplete_warnings(lacking, benchmark.title, merged.checkpoints)
                cells += found
                incomplete += lacking
    if not log.score_rows:
        raise DataError(f"{', '.join(map(str, runs))}: no score rows yet, nothing to report")
    counting = Counting(cells)
    shared = counting.sentences({benchmark.name: benchmark.title for benchmark in merged.benchmarks})
    warnings = (*selection.notices, *merged.warnings, *log.all_warnings, *shared)
    return ResultTensor(
        merged,
        tuple(cells),
        tuple(incomplete),
        selection,
        tuple(log.score_files),
        log.score_rows,
        log.errors,
        warnings,
        counting,
        unread,
    )


def _cells(
    frame: pd.DataFrame,
    source: BenchmarkProtocol,
    context: int | None,
    checkpoints: Sequence[CheckpointEntry],
    selection: RunSelection,
    log: ReadLog,
) -> tuple[list[Cell], list[IncompleteCell]]:
    """Arrange the score rows of one benchmark, protocol and context as cells."""
    seeds = sorted(source.plan.seeds)
    codes, documents = pd.factorize(frame["doc_id"], sort=True)
    at = (frame["checkpoint"].to_numpy(), np.searchsorted(seeds, frame["seed"].to_numpy()), codes)
    size = (len(checkpoints), len(seeds), len(documents))

    def grid(values: np.ndarray | pd.Series | bool, empty: float, kind: type) -> np.ndarray:
        array: np.ndarray = np.full(size, empty, dtype=kind)
        array[at] = values
        return array

    there = grid(True, False, bool)
    refuse_more_than_planned(there, source, context, checkpoints)
    failed = np.asarray(grid(frame["failed"], False, bool).any(axis=1))
    scored = np.asarray(there.all(axis=1))
    if source.plan.direction == "lower" and not selection.excludes_errors:
        scored &= ~failed
    prompt_codes, hashes = pd.factorize(frame["prompt_hash"])
    prompts = grid(prompt_codes, -1, np.int64)
    groups, lacking = comparable_groups(
        ScoredDocuments(scored, failed, prompts), source, context, checkpoints, selection, log
    )
    if not groups:
        return [], lacking
    values = grid(frame["value"], np.nan, float)
    codes_of = {name: index for index, name in enumerate(OUTCOMES)}
    outcomes = grid(frame["outcome"].map(codes_of), 0, np.int8)
    lines, score_files = grid(frame["row"], 0, np.int64), grid(frame["file"], 0, np.int32)
    units = grid(frame["units"], 1.0, float)
    flags = {name: np.asarray(grid(frame[name], False, bool).any(axis=1)) for name in FLAGS}
    answers = grid(frame["answer"], NO_CHOICE, np.int32)
    scored_answers = grid(frame["scored_answer"], NO_CHOICE, np.int32)
    chance = _chance(frame, codes, len(documents), source) if _has_chance(frame, source) else None
    clusters = _clusters(frame, codes, len(documents), source)
    cells = []
    for rows, selected in groups:
        pick = np.ix_(np.asarray(rows), np.arange(len(seeds)), selected)
        cells.append(
            Cell(
                benchmark=source.benchmark,
                protocol=source.protocol,
                context=context,
                seeds=tuple(int(seed) for seed in seeds),
                present=tuple(rows),
                documents=np.asarray(documents, dtype=str)[selected],
                values=values[pick],
                outcomes=outcomes[pick],
                lines=lines[pick],
                score_files=score_files[pick],
                chance=None if chance is None else chance[selected],
                units=units[pick],
                prompt_hashes=np.asarray(hashes, dtype=str)[prompts[pick][0, 0]],
                clusters=None if clusters is None else np.unique(clusters[selected], return_inverse=True)[1],
                answers=answers[pick],
                **{name: of[np.ix_(np.asarray(rows), selected)].sum(axis=1) for name, of in flags.items()},
                scored_answers=scored_answers[pick],
                excluded=int(failed[rows].any(axis=0).sum()) if selection.excludes_errors else 0,
                answer_names=log.answers.get(source.benchmark.name, ())
                if source.protocol == "generation"
                else (),
            )
        )
    return cells, lacking


def _clusters(
    frame: pd.DataFrame, codes: np.ndarray, documents: int, source: BenchmarkProtocol
) -> np.ndarray | None:
    """Cluster of each document; None if the score rows have none. [documents]

    Raises:
        DataError: only some score rows name a cluster, or a document is in two.
    """
    known = frame["cluster"].notna().to_numpy()
    if not known.any():
        return None
    # By name: the draws of the bootstrap must not depend on the order of the rows.
    names, _ = pd.factorize(frame["cluster"], sort=True)
    clusters = np.full(documents, -1, dtype=np.int64)
    clusters[codes] = names
    if not known.all() or (clusters[codes] != names).any():
        raise DataError(
            f"{source.benchmark.name}: the {source.protocol_title} score rows disagree on 'cluster' of a "
            "document; score the runs again with --score-only"
        )
    return clusters


def _has_chance(frame: pd.DataFrame, source: BenchmarkProtocol) -> bool:
    if source.plan.direction == "lower":
        return False
    return isinstance(source.benchmark.chance, float | int) or not frame["chance"].isna().any()


def _chance(frame: pd.DataFrame, codes: np.ndarray, documents: int, source: BenchmarkProtocol) -> np.ndarray:
    """Chance level of each document: that of its score rows, else the plan's. [documents]

    Raises:
        DataError: score rows of one document have different chance levels.
    """
    plan = source.benchmark.chance
    chance = np.full(documents, plan if isinstance(plan, float | int) else np.nan, dtype=float)
    known = frame["chance"].notna().to_numpy()
    stated = frame["chance"].to_numpy()[known]
    chance[codes[known]] = stated
    for at in np.flatnonzero(np.abs(chance[codes[known]] - stated) > EQUAL)[:1]:
        document, levels = frame["doc_id"].to_numpy()[known][at], (stated[at], chance[codes[known]][at])
        raise DataError(
            f"{source.benchmark.name}: the {source.protocol_title} score rows of document {document} have "
            f"two chance levels, {min(levels):g} and {max(levels):g}; they are of different questions, or of "
            "different versions: score them again with --score-only"
        )
    return chance

"""The result tensor: the scores of all runs as arrays [checkpoints, seeds, documents], ready to be compared.

A cell is one benchmark under one protocol at one context. It has only documents that all of its checkpoints
answered with the same prompt; whatever is excluded is reported in a warning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.records.journals import JournalRef, ReadLog, read_journal
from evalsuite.reports.records.merging import CheckpointEntry, MergedPlan, merge_plans
from evalsuite.reports.records.reading import NO_CONTEXT
from evalsuite.reports.records.run_folder import BenchmarkPlan, ProtocolPlan
from evalsuite.reports.statistics.seeds import seed_effect

COMPLETE = 0.9
"""A checkpoint with less than this share of a cell's documents is excluded from the cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The scores of one benchmark under one protocol at one context."""

    benchmark: BenchmarkPlan
    protocol: str
    context: int | None
    seeds: tuple[int, ...]
    present: tuple[int, ...]
    """Indices of the checkpoints in this cell: the rows of the arrays below."""
    documents: np.ndarray
    """[D] doc_ids, sorted"""
    values: np.ndarray
    """[C, S, D] values of the plan's metric"""
    outcomes: np.ndarray
    """[C, S, D] indices into OUTCOMES"""
    lines: np.ndarray
    """[C, S, D] line in the journal"""
    journals: np.ndarray
    """[C, S, D] index into `ResultTensor.journals`"""
    chance: np.ndarray | None
    """[D] chance level as a fraction; None if unknown"""
    units: np.ndarray
    """[C, S, D] for perplexities: number of units of each document; else 1"""
    prompt_hashes: np.ndarray
    """[D] prompt_hash, equal for all checkpoints"""

    @property
    def plan(self) -> ProtocolPlan:
        """The plan of this benchmark under this protocol."""
        return self.benchmark.protocols[self.protocol]  # type: ignore[index]

    @property
    def is_perplexity(self) -> bool:
        """Whether lower is better."""
        return self.plan.direction == "lower"

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Benchmark, protocol, context."""
        return self.benchmark.name, self.protocol, self.context

    def row(self, checkpoint: int | None) -> int | None:
        """The row of a checkpoint; None if it is not in this cell."""
        return (
            self.present.index(checkpoint) if checkpoint is not None and checkpoint in self.present else None
        )

    def scores(self) -> np.ndarray:
        """Values averaged over seeds. [C, D]"""
        return self.values.mean(axis=1)

    def seed_variance(self) -> np.ndarray:
        """Variance of each row's mean due to the sampling seeds. [C]"""
        effects = [seed_effect(values.T) for values in self.values]
        return np.array([effect.seed_variance if effect else 0.0 for effect in effects])


@dataclass(frozen=True, slots=True)
class ResultTensor:
    """All cells of a report, with the merged plan and the warnings."""

    merged: MergedPlan
    cells: tuple[Cell, ...]
    journals: tuple[Path, ...]
    score_rows: int
    """Number of score rows read."""
    errors: dict[tuple[int, str, str], int]
    """(checkpoint, benchmark, protocol) → number of responses with outcome `error`"""
    warnings: tuple[str, ...]

    @property
    def checkpoints(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints, each teacher followed by its students."""
        return self.merged.checkpoints

    def find(self, benchmark: str, protocol: str) -> list[Cell]:
        """List the cells of a benchmark under a protocol, by context."""
        return [c for c in self.cells if c.benchmark.name == benchmark and c.protocol == protocol]


def load_result_tensor(
    runs: Sequence[Path], teacher: str | None = None, min_coverage: float = 0.0
) -> ResultTensor:
    """Read runs and arrange their scores.

    Args:
        runs: run folders.
        teacher: see `merge_plans`.
        min_coverage: exclude a student from cells in which it has less than this share of its teacher's
            documents. The first responses of an interrupted run are not a random sample.

    Raises:
        DataError: no score rows, or invalid ones (see `read_journal`).
        RunFolderError, ConfigError: see `merge_plans`.
    """
    merged = merge_plans(runs, teacher)
    log = ReadLog()
    cells: list[Cell] = []
    for benchmark in merged.benchmarks:
        for protocol, plan in benchmark.protocols.items():
            journal = JournalRef(benchmark, protocol, plan)
            frame = read_journal(journal, runs, merged.checkpoints, log)
            if frame is None:
                continue
            for context in sorted(frame["context"].unique()):
                part = frame[frame["context"] == context]
                cell = _cell(part, journal, int(context), merged.checkpoints, log, min_coverage)
                cells += [cell] if cell else []
    if not cells:
        raise DataError(f"{', '.join(map(str, runs))}: no score rows yet, nothing to report")
    warnings = (*merged.warnings, *dict.fromkeys(log.warnings))
    return ResultTensor(merged, tuple(cells), tuple(log.journals), log.score_rows, log.errors, warnings)


def _cell(
    frame: pd.DataFrame,
    journal: JournalRef,
    context: int,
    checkpoints: Sequence[CheckpointEntry],
    log: ReadLog,
    min_coverage: float,
) -> Cell | None:
    present_seeds = sorted(frame["seed"].unique())
    seeds = [seed for seed in present_seeds if seed in journal.plan.seeds] or present_seeds
    frame = frame[frame["seed"].isin(seeds)]
    codes, documents = pd.factorize(frame["doc_id"], sort=True)
    at = (frame["checkpoint"].to_numpy(), np.searchsorted(seeds, frame["seed"].to_numpy()), codes)
    size = (len(checkpoints), len(seeds), len(documents))

    def grid(values: np.ndarray | pd.Series, empty: float, kind: type) -> np.ndarray:
        array: np.ndarray = np.full(size, empty, dtype=kind)
        array[at] = values
        return array

    values = grid(frame["value"], np.nan, float)
    prompt_codes, hashes = pd.factorize(frame["prompt_hash"])
    prompts = grid(prompt_codes, -1, np.int64)
    title = journal.benchmark.title + ("" if context == NO_CONTEXT else f" at {context:,} tokens")
    has = _without_low_coverage(
        ~np.isnan(values).any(axis=1), title, journal.protocol, checkpoints, log, min_coverage
    )
    rows, selected = _compared(has, prompts, title, journal.protocol, checkpoints, log)
    if len(selected) == 0:
        return None
    pick = np.ix_(rows, np.arange(len(seeds)), selected)
    codes_of = {name: index for index, name in enumerate(OUTCOMES)}
    return Cell(
        benchmark=journal.benchmark,
        protocol=journal.protocol,
        context=None if context == NO_CONTEXT else context,
        seeds=tuple(int(seed) for seed in seeds),
        present=tuple(int(row) for row in rows),
        documents=np.asarray(documents, dtype=str)[selected],
        values=values[pick],
        outcomes=grid(frame["outcome"].map(codes_of), 0, np.int8)[pick],
        lines=grid(frame["line"], 0, np.int64)[pick],
        journals=grid(frame["journal"], 0, np.int32)[pick],
        chance=_chance(frame, codes, len(documents), journal)[selected]
        if _has_chance(frame, journal)
        else None,
        units=grid(frame["units"], 1.0, float)[pick],
        prompt_hashes=np.asarray(hashes, dtype=str)[prompts[pick][0, 0]],
    )


def _has_chance(frame: pd.DataFrame, journal: JournalRef) -> bool:
    if journal.plan.direction == "lower":
        return False
    return isinstance(journal.benchmark.chance, float | int) or not frame["chance"].isna().any()


def _chance(frame: pd.DataFrame, codes: np.ndarray, documents: int, journal: JournalRef) -> np.ndarray:
    """Chance level of each document: that of its score rows, else the plan's. [documents]"""
    plan = journal.benchmark.chance
    chance = np.full(documents, plan if isinstance(plan, float | int) else np.nan, dtype=float)
    known = frame["chance"].notna().to_numpy()
    chance[codes[known]] = frame["chance"].to_numpy()[known]
    return chance


def _without_low_coverage(
    has: np.ndarray,
    title: str,
    protocol: str,
    checkpoints: Sequence[CheckpointEntry],
    log: ReadLog,
    min_coverage: float,
) -> np.ndarray:
    """Return `has` without students that have too few of their teacher's documents."""
    selected = has.copy()
    for i, checkpoint in enumerate(checkpoints):
        if checkpoint.teacher is None or not has[i].any():
            continue
        own, planned = int((has[i] & has[checkpoint.teacher]).sum()), int(has[checkpoint.teacher].sum())
        if own < min_coverage * planned:
            selected[i] = False
            log.warnings.append(
                f"{title}: '{checkpoint.label}' has {own:,} of {planned:,} documents under {protocol}, less "
                f"than {100 * min_coverage:.0f} %, and is excluded."
            )
    return selected


def _compared(
    has: np.ndarray,
    prompts: np.ndarray,
    title: str,
    protocol: str,
    checkpoints: Sequence[CheckpointEntry],
    log: ReadLog,
) -> tuple[np.ndarray, np.ndarray]:
    """Select the checkpoints [rows] and documents [selected] of a cell.

    The reference documents are those of the teacher that the most complete student has as well. Checkpoints
    that lack more than a tenth of them are excluded; of the others, only common documents are compared.
    """
    who = [int(i) for i in np.flatnonzero(has.any(axis=1))]
    teachers = [i for i in who if checkpoints[i].is_teacher]
    students = [i for i in who if not checkpoints[i].is_teacher]
    base = has[teachers[0]].copy() if teachers else np.ones(has.shape[1], dtype=bool)
    if students:
        base &= has[max(students, key=lambda i: int((has[i] & base).sum()))]
    reference = prompts[(teachers or who)[0]]
    if not base.any():
        labels = ", ".join(f"'{checkpoints[i].label}'" for i in who)
        log.warnings.append(
            f"{title}: {labels} have no document in common under {protocol}; nothing is compared."
        )
        return np.array([], dtype=int), np.array([], dtype=int)
    rows = []
    for i in who:
        same = (prompts[i] == reference).all(axis=0)
        different = int((base & has[i] & ~same).sum())
        if different:
            log.warnings.append(
                f"{title}: '{checkpoints[i].label}' has other prompts for {different:,} documents under "
                f"{protocol}; they are excluded."
            )
        own = int((base & has[i] & same).sum())
        if own == 0 or own < COMPLETE * base.sum():
            log.warnings.append(
                f"{title}: '{checkpoints[i].label}' has only {own:,} of the {base.sum():,} documents under "
                f"{protocol} and is excluded."
            )
        else:
            rows.append(i)
    if not rows:
        return np.array([], dtype=int), np.array([], dtype=int)
    common = (has[rows] & (prompts[rows] == reference).all(axis=1)).all(axis=0)
    most = int(has[rows].sum(axis=1).max())
    if common.sum() < most:
        log.warnings.append(
            f"{title}: the checkpoints differ in their documents under {protocol}; the {common.sum():,} that "
            f"all have are compared, of up to {most:,}."
        )
    return np.array(rows), np.flatnonzero(common)

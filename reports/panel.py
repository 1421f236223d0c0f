"""The panel: all answers of all runs as arrays, document by document, ready to be compared.

Only documents that every compared checkpoint answered, asked in the same words, are in a cell. What is left
out is said in a warning; it is never averaged away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from evalsuite.foundation import DataError
from evalsuite.reports.journals import Notes, Place, read_place
from evalsuite.reports.merging import MergedPlan, Subject, merge_plans
from evalsuite.reports.reading import NO_CONTEXT
from evalsuite.reports.records import OUTCOMES
from evalsuite.reports.run_folder import BenchmarkPlan, ProtocolPlan
from evalsuite.reports.statistics.seeds import seed_effect

COMPLETE = 0.9
"""A checkpoint that answered less than this share of a cell's documents is left out of the cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One benchmark under one protocol at one context: who answered what."""

    benchmark: BenchmarkPlan
    protocol: str
    context: int | None
    seeds: tuple[int, ...]
    present: tuple[int, ...]
    """Indices of the subjects that answered; the rows of the arrays below."""
    documents: np.ndarray
    """[D] doc_ids that all of them answered, sorted"""
    answers: np.ndarray
    """[C, S, D] values of the plan's metric"""
    outcomes: np.ndarray
    """[C, S, D] indices into OUTCOMES"""
    lines: np.ndarray
    """[C, S, D] line in the journal"""
    journals: np.ndarray
    """[C, S, D] index into `Panel.journals`"""
    chance: np.ndarray | None
    """[D] chance level as a fraction; None if unknown"""
    units: np.ndarray
    """[C, S, D] for perplexities: number of units of each document; else 1"""
    prompts: np.ndarray
    """[D] prompt_hash, the same for all of them"""

    @property
    def plan(self) -> ProtocolPlan:
        """How it was asked."""
        return self.benchmark.protocols[self.protocol]  # type: ignore[index]

    @property
    def is_perplexity(self) -> bool:
        """Whether lower is better."""
        return self.plan.direction == "lower"

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Benchmark, protocol, context."""
        return self.benchmark.name, self.protocol, self.context

    def row(self, subject: int | None) -> int | None:
        """The row of a subject; None if it did not answer."""
        return self.present.index(subject) if subject is not None and subject in self.present else None

    def scores(self) -> np.ndarray:
        """Values averaged over seeds. [C, D]"""
        return self.answers.mean(axis=1)

    def seed_variance(self) -> np.ndarray:
        """Variance of each row's mean that comes from the seeds as such. [C]"""
        effects = [seed_effect(values.T) for values in self.answers]
        return np.array([effect.seed_variance if effect else 0.0 for effect in effects])


@dataclass(frozen=True, slots=True)
class Panel:
    """All cells of a report."""

    merged: MergedPlan
    cells: tuple[Cell, ...]
    journals: tuple[Path, ...]
    records: int
    """How many records were read."""
    errors: dict[tuple[int, str, str], int]
    """(subject, benchmark, protocol) → answers that could not be had"""
    warnings: tuple[str, ...]

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The checkpoints, each teacher followed by its students."""
        return self.merged.subjects

    def find(self, benchmark: str, protocol: str) -> list[Cell]:
        """The cells of a benchmark under a protocol, by context."""
        return [c for c in self.cells if c.benchmark.name == benchmark and c.protocol == protocol]


def load_panel(runs: Sequence[Path], teacher: str | None = None, least: float = 0.0) -> Panel:
    """Read runs and arrange their answers.

    Args:
        runs: run folders.
        teacher: as `merge_plans` takes it.
        least: leave a student out of cells of which it answered less than this share of its teacher's
            documents. What an interrupted run answered first is no sample.

    Raises:
        DataError: no records, or records that `read_place` refuses.
        RunFolderError, ConfigError: as `merge_plans`.
    """
    merged = merge_plans(runs, teacher)
    notes = Notes()
    cells: list[Cell] = []
    for benchmark in merged.benchmarks:
        for protocol, plan in benchmark.protocols.items():
            place = Place(benchmark, protocol, plan)
            frame = read_place(place, runs, merged.subjects, notes)
            if frame is None:
                continue
            for context in sorted(frame["context"].unique()):
                part = frame[frame["context"] == context]
                cell = _cell(part, place, int(context), merged.subjects, notes, least)
                cells += [cell] if cell else []
    if not cells:
        raise DataError(f"{', '.join(map(str, runs))}: no records yet, so there is nothing to report")
    warnings = (*merged.warnings, *dict.fromkeys(notes.warnings))
    return Panel(merged, tuple(cells), tuple(notes.journals), notes.records, notes.errors, warnings)


def _cell(
    frame: pd.DataFrame,
    place: Place,
    context: int,
    subjects: Sequence[Subject],
    notes: Notes,
    least: float,
) -> Cell | None:
    present_seeds = sorted(frame["seed"].unique())
    seeds = [seed for seed in present_seeds if seed in place.plan.seeds] or present_seeds
    frame = frame[frame["seed"].isin(seeds)]
    codes, documents = pd.factorize(frame["doc_id"], sort=True)
    at = (frame["subject"].to_numpy(), np.searchsorted(seeds, frame["seed"].to_numpy()), codes)
    size = (len(subjects), len(seeds), len(documents))

    def grid(values: np.ndarray | pd.Series, empty: float, kind: type) -> np.ndarray:
        array: np.ndarray = np.full(size, empty, dtype=kind)
        array[at] = values
        return array

    answers = grid(frame["value"], np.nan, float)
    prompt_codes, prompt_hashes = pd.factorize(frame["prompt_hash"])
    prompts = grid(prompt_codes, -1, np.int64)
    title = place.benchmark.title + ("" if context == NO_CONTEXT else f" at {context:,} tokens")
    has = _without_pieces(~np.isnan(answers).any(axis=1), title, place.protocol, subjects, notes, least)
    rows, kept = _compared(has, prompts, title, place.protocol, subjects, notes)
    if len(kept) == 0:
        return None
    pick = np.ix_(rows, np.arange(len(seeds)), kept)
    words = {word: index for index, word in enumerate(OUTCOMES)}
    return Cell(
        benchmark=place.benchmark,
        protocol=place.protocol,
        context=None if context == NO_CONTEXT else context,
        seeds=tuple(int(seed) for seed in seeds),
        present=tuple(int(row) for row in rows),
        documents=np.asarray(documents, dtype=str)[kept],
        answers=answers[pick],
        outcomes=grid(frame["outcome"].map(words), 0, np.int8)[pick],
        lines=grid(frame["line"], 0, np.int64)[pick],
        journals=grid(frame["journal"], 0, np.int32)[pick],
        chance=_chance(frame, codes, len(documents), place)[kept] if _has_chance(frame, place) else None,
        units=grid(frame["units"], 1.0, float)[pick],
        prompts=np.asarray(prompt_hashes, dtype=str)[prompts[pick][0, 0]],
    )


def _has_chance(frame: pd.DataFrame, place: Place) -> bool:
    if place.plan.direction == "lower":
        return False
    return isinstance(place.benchmark.chance, float | int) or not frame["chance"].isna().any()


def _chance(frame: pd.DataFrame, codes: np.ndarray, documents: int, place: Place) -> np.ndarray:
    """The chance level of each document: the records' own, else the plan's. [documents]"""
    plan = place.benchmark.chance
    chance = np.full(documents, plan if isinstance(plan, float | int) else np.nan, dtype=float)
    known = frame["chance"].notna().to_numpy()
    chance[codes[known]] = frame["chance"].to_numpy()[known]
    return chance


def _without_pieces(
    has: np.ndarray, title: str, protocol: str, subjects: Sequence[Subject], notes: Notes, least: float
) -> np.ndarray:
    """`has` without the answers of students that gave too few of them."""
    kept = has.copy()
    for i, subject in enumerate(subjects):
        if subject.teacher is None or not has[i].any():
            continue
        mine, asked = int((has[i] & has[subject.teacher]).sum()), int(has[subject.teacher].sum())
        if mine < least * asked:
            kept[i] = False
            notes.warnings.append(
                f"{title}: '{subject.label}' answered {mine:,} of {asked:,} documents under {protocol}, less "
                f"than {100 * least:.0f} %, and is left out there."
            )
    return kept


def _compared(
    has: np.ndarray,
    prompts: np.ndarray,
    title: str,
    protocol: str,
    subjects: Sequence[Subject],
    notes: Notes,
) -> tuple[np.ndarray, np.ndarray]:
    """Which subjects [rows] and documents [kept] enter a cell.

    The documents are those of the teacher that the most complete student answered as well. Whoever lacks
    more than a tenth of them is left out; of the others, only documents that all answered are compared.
    """
    who = [int(i) for i in np.flatnonzero(has.any(axis=1))]
    teachers = [i for i in who if subjects[i].is_teacher]
    students = [i for i in who if not subjects[i].is_teacher]
    base = has[teachers[0]].copy() if teachers else np.ones(has.shape[1], dtype=bool)
    if students:
        base &= has[max(students, key=lambda i: int((has[i] & base).sum()))]
    reference = prompts[(teachers or who)[0]]
    if not base.any():
        labels = ", ".join(f"'{subjects[i].label}'" for i in who)
        notes.warnings.append(
            f"{title}: {labels} answered no document in common under {protocol}; nothing is compared there."
        )
        return np.array([], dtype=int), np.array([], dtype=int)
    rows = []
    for i in who:
        alike = (prompts[i] == reference).all(axis=0)
        unlike = int((base & has[i] & ~alike).sum())
        if unlike:
            notes.warnings.append(
                f"{title}: '{subjects[i].label}' was asked {unlike:,} documents in other words under "
                f"{protocol}; they are not compared."
            )
        mine = int((base & has[i] & alike).sum())
        if mine == 0 or mine < COMPLETE * base.sum():
            notes.warnings.append(
                f"{title}: '{subjects[i].label}' answered only {mine:,} of the {base.sum():,} documents "
                f"under {protocol} and is left out there."
            )
        else:
            rows.append(i)
    if not rows:
        return np.array([], dtype=int), np.array([], dtype=int)
    common = (has[rows] & (prompts[rows] == reference).all(axis=1)).all(axis=0)
    most = int(has[rows].sum(axis=1).max())
    if common.sum() < most:
        notes.warnings.append(
            f"{title}: not all checkpoints answered the same documents under {protocol}; compared are the "
            f"{common.sum():,} that all answered, of up to {most:,}."
        )
    return np.array(rows), np.flatnonzero(common)

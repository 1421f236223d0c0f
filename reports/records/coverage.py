"""Coverage: which checkpoints have all planned documents of a cell, and which of them are comparable."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES
from evalsuite.reports.records.merging import CellKey, CheckpointEntry
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.score_rows import BenchmarkProtocol, ReadLog

Group = tuple[list[int], np.ndarray]
"""Checkpoints, and the positions of the documents on which they are compared."""


@dataclass(frozen=True, slots=True)
class IncompleteCell:
    """A planned cell that is not measured for a checkpoint."""

    checkpoint: int
    benchmark: str
    protocol: str
    context: int | None
    documents: int
    """Documents with a score under every seed, and with the teacher's prompt."""
    planned: int
    why: str = ""
    """Why complete score rows do not count."""

    @property
    def key(self) -> CellKey:
        """Benchmark, protocol, context."""
        return self.benchmark, self.protocol, self.context

    def sentence(self, labels: Sequence[str], title: str) -> str:
        """Such as ``Facts at 512 tokens: 'a' has 60 of 120 documents under generation``."""
        place = title if self.context is None else f"{title} at {self.context:,} tokens"
        who = ", ".join(f"'{label}'" for label in labels)
        text = (
            f"{place}: {who} {'has' if len(labels) == 1 else 'have'} {self.documents:,} of {self.planned:,}"
        )
        return (
            f"{text} documents under {PROTOCOL_TITLES[self.protocol]}{f' ({self.why})' if self.why else ''}"
        )


@dataclass(frozen=True, slots=True)
class ScoredDocuments:
    """What every checkpoint has scored in one benchmark, protocol and context."""

    scored: np.ndarray
    """[C, D] whether all seeds have a score row; for a perplexity, a value as well"""
    failed: np.ndarray
    """[C, D] whether the response of any seed is an error"""
    prompts: np.ndarray
    """[C, S, D] codes of the prompt hashes"""

    def same(self, checkpoint: int, reference: int) -> np.ndarray:
        """[D] documents that both have, with the same prompt."""
        prompt = (self.prompts[checkpoint] == self.prompts[reference]).all(axis=0)
        both: np.ndarray = self.scored[checkpoint] & self.scored[reference] & prompt
        return both


def incomplete_warnings(
    cells: Sequence[IncompleteCell], title: str, checkpoints: Sequence[CheckpointEntry]
) -> list[str]:
    """One sentence for all checkpoints that lack the same number of documents for the same reason."""
    groups: dict[tuple[int, str], list[IncompleteCell]] = {}
    for cell in cells:
        groups.setdefault((cell.documents, cell.why), []).append(cell)
    return [
        f"{group[0].sentence([checkpoints[cell.checkpoint].label for cell in group], title)}: not measured."
        for group in groups.values()
    ]


def refuse_more_than_planned(
    there: np.ndarray, source: BenchmarkProtocol, context: int | None, checkpoints: Sequence[CheckpointEntry]
) -> None:
    """Refuse score rows of more documents than the plan has.

    Args:
        there: [C, S, D] whether there is a score row.
        source, context: the cell.
        checkpoints: their labels.

    Raises:
        DataError: naming the benchmark, the checkpoint and both counts.
    """
    counts = there.any(axis=1).sum(axis=1)
    planned = source.plan.planned(context)
    for checkpoint in np.flatnonzero(counts > planned).tolist():
        place = "" if context is None else f" at {context:,} tokens"
        raise DataError(
            f"run.json: benchmark '{source.benchmark.name}'{place} has {planned:,} documents, but "
            f"'{checkpoints[checkpoint].label}' has {source.protocol_title} score rows of "
            f"{counts[checkpoint]:,}: "
            "the runs sampled different documents, or the plan is of another run; compare them separately"
        )


def comparable_groups(
    data: ScoredDocuments,
    source: BenchmarkProtocol,
    context: int | None,
    checkpoints: Sequence[CheckpointEntry],
    selection: RunSelection,
    log: ReadLog,
) -> tuple[list[Group], list[IncompleteCell]]:
    """Group the measured checkpoints: students with their teacher, and whoever has the same documents."""
    planned = source.plan.planned(context)
    counts = data.scored.sum(axis=1)
    lacking: list[IncompleteCell] = []

    def is_measured(checkpoint: int, documents: int, why: str = "") -> bool:
        if selection.admits(documents, planned):
            return True
        key = source.benchmark.name, source.protocol, context
        lacking.append(IncompleteCell(checkpoint, *key, documents, planned, why))
        return False

    there = np.flatnonzero((data.prompts >= 0).any(axis=(1, 2)))
    measured = [int(i) for i in there if is_measured(int(i), int(counts[i]), _errors(data, int(i), source))]
    teachers = {i for i in measured if checkpoints[i].is_teacher}
    groups = []
    for teacher in sorted(teachers):
        students = [i for i in measured if checkpoints[i].teacher == teacher]
        same = {i: data.same(i, teacher) for i in students}
        members = [i for i in students if is_measured(i, int(same[i].sum()), _difference(data, i, teacher))]
        groups.append(_common(data, [teacher, *members], selection))
    rest = [i for i in measured if i not in teachers and checkpoints[i].teacher not in teachers]
    groups += [_common(data, members, selection) for members in _alike(data, rest, planned, selection)]
    groups = _merge_equal(data, groups)
    for rows, documents in groups:
        if len(documents) < planned:
            place = "" if context is None else f" at {context:,} tokens"
            who = ", ".join(f"'{checkpoints[i].label}'" for i in rows)
            log.warnings.append(
                f"{source.benchmark.title}{place}: {who} {'is' if len(rows) == 1 else 'are'} compared on "
                f"{len(documents):,} of {planned:,} documents under {source.protocol_title}."
            )
    for rows, documents in groups:
        for row in rows if len(documents) == 0 else ():
            is_measured(row, 0, "no document is left in common")
    return [group for group in groups if len(group[1])], lacking


def _errors(data: ScoredDocuments, checkpoint: int, source: BenchmarkProtocol) -> str:
    failed = int(data.failed[checkpoint].sum())
    return f"{failed:,} are errors" if failed and source.plan.direction == "lower" else ""


def _difference(data: ScoredDocuments, checkpoint: int, teacher: int) -> str:
    """Why a student's documents are not its teacher's."""
    both = data.scored[checkpoint] & data.scored[teacher]
    prompts = int((both & ~data.same(checkpoint, teacher)).sum())
    others = int((data.scored[checkpoint] & ~both).sum())
    parts = [f"{prompts:,} have other prompts than its teacher's"] if prompts else []
    return " and ".join([*parts, *([f"its teacher lacks {others:,}"] if others else [])])


def _alike(
    data: ScoredDocuments, rest: Sequence[int], planned: int, selection: RunSelection
) -> Iterator[list[int]]:
    """Group checkpoints without a teacher: the most complete one, and whoever can be compared with it."""
    left = sorted(rest, key=lambda i: -int(data.scored[i].sum()))
    while left:
        members = [
            i for i in left if i == left[0] or selection.admits(int(data.same(i, left[0]).sum()), planned)
        ]
        left = [i for i in left if i not in members]
        yield members


def _common(data: ScoredDocuments, members: Sequence[int], selection: RunSelection) -> Group:
    """The documents that all members have with the prompt of the first, without errors if excluded."""
    common = np.logical_and.reduce([data.same(i, members[0]) for i in members])
    if selection.excludes_errors:
        common &= ~data.failed[list(members)].any(axis=0)
    return sorted(members), np.flatnonzero(common)


def _merge_equal(data: ScoredDocuments, groups: Sequence[Group]) -> list[Group]:
    """Merge groups with equal documents and prompts, so that any two of their checkpoints compare."""
    merged: dict[bytes, Group] = {}
    for rows, documents in groups:
        key = documents.tobytes() + data.prompts[rows[0]][:, documents].tobytes()
        known = merged.get(key, ([], documents))[0]
        merged[key] = sorted([*known, *rows]), documents
    return list(merged.values())

"""Generated answers to questions with choices: how often one is named, how often it is right, and which one.

A model that names a letter at random, or always the same one, scores like one that knows something if the
other model names none. Accuracy among named answers and the distribution of letters tell them apart.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.analysis.bootstrap_sample import Estimate, ResampledStratum
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.flips import has_answers, has_choices
from evalsuite.reports.json_values import to_json
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.intervals import Interval, wilson

MOST = 8
"""Answers that are listed by name; the rest is summed up as `other`."""
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """The named answers of one checkpoint on one benchmark with choices, under generation."""

    checkpoint: int
    benchmark: str
    context: int | None
    responses: int
    """Documents × sampling seeds."""
    named: float
    """Share of the responses that name an answer."""
    accuracy_among_named: Estimate
    """Share of the named answers that are right."""
    chance: float
    """Mean chance level of the documents with a named answer; of all documents if there is none."""
    letters: dict[str, float]
    """Answer → share of the named answers; the most frequent ones of the benchmark, then `other`."""

    @property
    def is_above_chance(self) -> bool:
        """Whether the accuracy among named answers is above chance by its interval."""
        interval = self.accuracy_among_named.interval
        return interval is not None and interval.low > self.chance


def letters(report: Report) -> list[LetterRow]:
    """One row per checkpoint and generation cell with choices."""
    found = []
    for cell in report.tensor.cells:
        if cell.protocol == "generation" and has_answers(cell) and has_choices(cell) and _are_letters(cell):
            found += _rows(cell)
    return found


def _are_letters(cell: Cell) -> bool:
    """Whether nearly all named answers are one letter or digit."""
    is_letter = np.array([len(name) == 1 and name.isalnum() for name in cell.answer_names])
    named = cell.answers[cell.answers >= 0]
    return bool(is_letter[named].mean() >= 0.9)


def _rows(cell: Cell) -> list[LetterRow]:
    assert cell.chance is not None  # `has_choices`
    named = cell.answers >= 0
    right = np.where(named, cell.values, 0.0)
    counts = Counter(cell.answers[named].tolist())
    listed = [
        code for code, _ in sorted(counts.most_common(MOST), key=lambda item: cell.answer_names[item[0]])
    ]
    estimates = _accuracies(cell, named, right)
    rows = []
    for row, checkpoint in enumerate(cell.present):
        total = int(named[row].sum())
        shares = {
            cell.answer_names[code]: float((cell.answers[row] == code).sum()) / total
            for code in listed
            if total
        }
        if total and (rest := 1 - sum(shares.values())) > 1e-9:
            shares[OTHER] = rest
        weights = named[row].mean(axis=0)
        chance = float(weights @ cell.chance / weights.sum()) if total else float(cell.chance.mean())
        rows.append(
            LetterRow(
                checkpoint=checkpoint,
                benchmark=cell.benchmark.name,
                context=cell.context,
                responses=named[row].size,
                named=float(named[row].mean()),
                accuracy_among_named=estimates[row],
                chance=chance,
                letters=shares,
            )
        )
    return rows


def _accuracies(cell: Cell, named: np.ndarray, right: np.ndarray) -> Sequence[Estimate]:
    """Accuracy among named answers of each row, by Wilson's interval, or a bootstrap of the linearized ratio.

    Args:
        cell: the cell.
        named: [C, S, D] whether an answer is named.
        right: [C, S, D] whether it is named and right.
    """
    totals = named.sum(axis=(1, 2))
    if cell.clusters is None and len(cell.seeds) == 1:
        intervals = [wilson(float(r.sum()), int(total)) for r, total in zip(right, totals, strict=True)]
        return [_estimate(interval) for interval in intervals]
    if cell.independent_units < 2:
        return [Estimate(None, "one document is too few for an interval")] * len(totals)
    columns = np.full((len(cell.documents), len(totals)), np.nan)
    for i, total in enumerate(totals):
        if total:
            share = float(right[i].sum() / total)
            n, x = named[i].mean(axis=0), right[i].mean(axis=0)
            columns[:, i] = share + (x - share * n) / n.mean()
    key = content_hash(["letters", cell.key, cell.documents.tolist()])
    data = ResampledStratum(Stratum(columns, tuple(map(str, cell.present)), key, cell.clusters))
    return [
        _estimate(
            data.bootstrap({i: 1.0}).interval(method="bootstrap of a ratio").clipped(0.0, 1.0)
            if total
            else None
        )
        for i, total in enumerate(totals)
    ]


def _estimate(interval: Interval | None) -> Estimate:
    return Estimate(interval, "" if interval else "no response names an answer")


def _json(report: Report) -> list[dict[str, Any]]:
    return [{**to_json(row), "is_above_chance": row.is_above_chance} for row in report.of(letters)]


MEASURES.add("letters", Measure(json={"letters": _json}))

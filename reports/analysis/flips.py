"""Flips of one cell: per document, whether a checkpoint answers as its reference does, and who is right.

The reference is the teacher, or another training run of the same recipe. Answers of several sampling seeds
are compared seed by seed.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalsuite.foundation.taxonomy import OUTCOMES, names_answer
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.statistics.agreement import agreement_by_chance, cohen_kappa

Flip = Literal["agreement", "scored_agreement", "kappa", "by_chance", "lost", "gained", "retained"]
"""`by_chance`: agreement of independent choices with the same frequencies, which κ is relative to."""
FLIPS: tuple[Flip, ...] = ("agreement", "scored_agreement", "kappa", "lost", "gained", "retained")
"""Those that are reported."""
ALL_DOCUMENTS, NAMED, RIGHT = "all", "named", "right"
BASES: dict[str, dict[str, tuple[Flip, ...]]] = {
    "loglikelihood": {
        ALL_DOCUMENTS: ("agreement", "scored_agreement", "kappa", "by_chance", "lost", "gained"),
        RIGHT: ("retained",),
    },
    "generation": {
        ALL_DOCUMENTS: ("lost", "gained"),
        NAMED: ("agreement", "kappa", "by_chance"),
        RIGHT: ("retained",),
    },
}
"""Protocol → base → measures: the documents that a measure is a mean over, which are all, those on which the
reference names an answer, or those that it gets right."""
_NAMED = np.array([names_answer(outcome) for outcome in OUTCOMES])


def is_binary(cell: Cell) -> bool:
    """Whether all scores are right (1) or wrong (0), and some are right: zeros alone may be fractions."""
    return bool(np.isin(cell.values, (0.0, 1.0)).all() and (cell.values == 1).any())


def has_answers(cell: Cell) -> bool:
    """Whether answers can be compared: choices under log-likelihood, extracted answers under generation."""
    if cell.protocol == "loglikelihood":
        return bool(cell.answers.max(initial=0) > 0)
    return is_binary(cell) and bool((cell.answers >= 0).any())


def stores_choices(cell: Cell, row: int) -> bool:
    """Whether choices of all scored documents of a row are known: scores can be published without some."""
    scored = cell.outcomes[row] == OUTCOMES.index("ok")
    return (
        cell.protocol != "loglikelihood" or not scored.any() or bool((cell.answers[row][scored] >= 0).all())
    )


def has_choices(cell: Cell) -> bool:
    """Whether the answers are a few letters, so that agreement by chance is known."""
    return cell.chance is not None and bool((cell.chance > 0).all())


def has_scored_choices(cell: Cell, row: int) -> bool:
    """Whether the choice that the plan's metric picks is known on every document of a row."""
    return has_answers(cell) and bool((cell.scored_answers[row] >= 0).all())


def named_share(cell: Cell, row: int) -> float:
    """Share of documents and seeds in which a response names an answer; 1 under log-likelihood."""
    if cell.protocol == "loglikelihood":
        return 1.0
    if (cell.answers[row] >= 0).any():
        return float((cell.answers[row] >= 0).mean())
    return float(_NAMED[cell.outcomes[row]].mean())


@dataclass(frozen=True, slots=True)
class Reference:
    """One checkpoint of a cell that others are compared with."""

    cell: Cell
    row: int
    """Its row in the arrays of the cell."""

    def documents(self, base: str) -> np.ndarray:
        """[D] whether a document counts: the reference names an answer, or is right, in half its seeds."""
        if base == RIGHT:
            return np.asarray(self.cell.values[self.row].mean(axis=0) >= 0.5)
        if base == NAMED:
            return np.asarray((self.cell.answers[self.row] >= 0).mean(axis=0) >= 0.5)
        return np.ones(len(self.cell.documents), dtype=bool)

    def values(self, measure: Flip, row: int) -> np.ndarray | None:
        """A measure of the checkpoint in `row`, on the documents of its base; None if it has none here.

        Returns:
            [seeds, documents]; in [0, 1], but for κ.
        """
        cell = self.cell
        if measure in ("lost", "gained", "retained"):
            return self._flips(measure, row) if is_binary(cell) else None
        if not has_answers(cell) or not (stores_choices(cell, row) and stores_choices(cell, self.row)):
            return None
        picked = cell.answers
        if measure == "scored_agreement":
            if not has_scored_choices(cell, row) or not has_scored_choices(cell, self.row):
                return None
            picked = cell.scored_answers
        chosen = self.documents(ALL_DOCUMENTS if cell.protocol == "loglikelihood" else NAMED)
        mine, theirs = picked[row][:, chosen], picked[self.row][:, chosen]
        if measure in ("kappa", "by_chance"):
            if cell.protocol == "generation" and not has_choices(cell):
                return None
            if measure == "by_chance":
                each = [agreement_by_chance(a, b) for a, b in zip(mine, theirs, strict=True)]
                return np.repeat(np.array(each)[:, None], mine.shape[1], axis=1)
            found = [cohen_kappa(a, b) for a, b in zip(mine, theirs, strict=True)]
            known = [each for each in found if each is not None]
            return np.array(known) if known and len(known) == len(found) else None
        same = (mine == theirs) & (theirs >= 0)
        if cell.protocol == "generation":
            # Two right answers are one answer, whatever its form.
            right = (cell.values[row] == 1) & (cell.values[self.row] == 1) & _NAMED[cell.outcomes[row]]
            same |= right[:, chosen]
        return np.asarray(same.astype(float))

    def _flips(self, measure: Flip, row: int) -> np.ndarray:
        mine, theirs = self.cell.values[row], self.cell.values[self.row]
        if measure == "lost":
            return np.asarray((1 - mine) * theirs)
        if measure == "gained":
            return np.asarray(mine * (1 - theirs))
        return np.asarray(mine[:, self.documents(RIGHT)])

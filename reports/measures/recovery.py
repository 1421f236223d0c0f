"""Scores, drops and recoveries in rules of the gate: of a checkpoint, or of the runs of its recipe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.recovery import Ratio, capped_ratio, mean_drop, ratio_of
from evalsuite.reports.analysis.replicates import RunSpread
from evalsuite.reports.rules.evidence import NO_TEACHER, Evidence, lost_documents
from evalsuite.reports.rules.measurement import ONE_RUN, Measurement, NotMeasured
from evalsuite.reports.rules.metric import Measured, RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.statistics.contrasts import Contrast, is_positive
from evalsuite.reports.statistics.power import (
    drop_margin,
    normalized_ratio_margin,
    ratio_margin,
    score_margin,
)

PROOF = 1 - 2e-4
"""Level of the interval of a teacher's lead over chance that must lie above zero: one in 10,000 a side.

Of many benchmarks a teacher is above chance on a few by luck; what a student keeps of that says nothing."""
STATED = 6.0
"""Degrees of freedom of a spread between runs that a policy states: as of three recipes with three runs."""


def score(evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int) -> Measurement | NotMeasured:
    """The checkpoint's own macro average."""
    assert protocol is not None
    found = evidence.sample(rule, protocol, [checkpoint])
    if isinstance(found, NotMeasured):
        return found
    data, _ = found
    return Measurement(data.level_contrast(checkpoint), data.documents, ())


@dataclass(frozen=True, slots=True)
class _Compared:
    """A checkpoint, or the runs of its recipe, and its teacher on the cells that a rule selects."""

    data: BootstrapSample
    cells: list[Cell]
    students: list[int]
    teacher: int
    spread: RunSpread | None
    look_at: tuple[str, ...]

    def measurement(
        self, contrast: Contrast, denominator: Contrast | None = None, lead: Contrast | None = None
    ) -> Measurement:
        """The measurement of a quantity of these checkpoints."""
        over, runs = ONE_RUN, tuple(self.students) if len(self.students) > 1 else ()
        if self.spread is not None:
            what = f"{len(runs)} training runs" if runs else "training runs like this one"
            over = f"documents and {what} ({100 * self.spread.variance**0.5:.1f} points between runs)"
        return Measurement(contrast, self.data.documents, self.look_at, denominator, lead, over, runs)


def _compared(evidence: Evidence, rule: Rule, protocol: str, checkpoint: int) -> _Compared | NotMeasured:
    teacher = evidence.tensor.checkpoints[checkpoint].teacher
    found = evidence.sample(rule, protocol, [checkpoint] if teacher is None else [checkpoint, teacher])
    if isinstance(found, NotMeasured):
        return found
    if teacher is None:
        return NO_TEACHER
    data, cells = found
    over = _runs(evidence, rule, protocol, checkpoint, data)
    if isinstance(over, NotMeasured):
        return over
    return _Compared(data, cells, over[0], teacher, over[1], lost_documents(cells, checkpoint, teacher))


def drop(evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int) -> Measurement | NotMeasured:
    """Teacher − student, in points."""
    assert protocol is not None
    found = _compared(evidence, rule, protocol, checkpoint)
    if isinstance(found, NotMeasured):
        return found
    lead = _proven_lead(evidence, found, protocol)
    if isinstance(lead, NotMeasured):
        return lead
    contrast = mean_drop(found.data, found.students, found.teacher, found.spread)
    return found.measurement(contrast.scaled(100), lead=lead and lead.scaled(100))


def _proven_lead(evidence: Evidence, found: _Compared, protocol: str) -> Contrast | NotMeasured | None:
    """The teacher's lead over chance, if it is proven; None where a chance level is not known.

    The student must keep a share of it: of a score that is mostly chance, guesses lose little.
    """
    if any(cell.chance is None for cell in found.cells):
        return None
    chance = evidence.pool(protocol).chance
    lead = found.data.mean({found.teacher: 1.0, chance: -1.0})
    if is_positive(lead, PROOF):
        return lead
    return NotMeasured(
        f"the teacher is not proven to be above chance ({100 * found.data.level(chance):.1f} %): its lead of "
        f"{100 * lead.point:.1f} points could be luck (p > {(1 - PROOF) / 2:g}), and so could what the "
        "student keeps of it; evaluate more documents, or benchmarks that the teacher knows"
    )


def _ratio_metric(ratio_on: Callable[[_Compared, int], Ratio | str]) -> Measured:
    """Measure a recovery, a function of the compared checkpoints and the column of the chance level."""

    def measured(
        evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
    ) -> Measurement | NotMeasured:
        assert protocol is not None
        found = _compared(evidence, rule, protocol, checkpoint)
        if isinstance(found, NotMeasured):
            return found
        ratio = ratio_on(found, evidence.pool(protocol).chance)
        if isinstance(ratio, str):
            return NotMeasured(f"recovery is undefined: {ratio}")
        lead = _proven_lead(evidence, found, protocol)
        if isinstance(lead, NotMeasured):
            return lead
        return found.measurement(ratio.numerator, ratio.denominator, lead)

    return measured


def _above_chance(found: _Compared, chance: int) -> Ratio | str:
    if any(cell.chance is None for cell in found.cells):
        return "the chance level of a benchmark is not known"
    return ratio_of(found.data, found.students, found.teacher, chance, found.spread)


def _capped(found: _Compared, chance: int) -> Ratio | str:
    names = [cell.benchmark.name for cell in found.cells]
    return capped_ratio(found.data, names, found.students[0], found.teacher)


def _runs(
    evidence: Evidence, rule: Rule, protocol: str, checkpoint: int, data: BootstrapSample
) -> tuple[list[int], RunSpread | None] | NotMeasured:
    """The runs of a checkpoint's recipe and the spread between them, or the checkpoint alone and none."""
    over, stated = rule.over or evidence.over, evidence.run_spread
    if over == "documents":
        return [checkpoint], None
    recipes = evidence.pool(protocol).recipes
    students = [i for i in recipes.runs(checkpoint) if np.isfinite(data.level(i))]
    spread = (
        recipes.spread(data, evidence.tensor.checkpoints[checkpoint].teacher)
        if stated is None
        else RunSpread((stated / 100) ** 2, STATED)
    )
    if spread is not None:
        return students, spread
    if over == "runs":
        label = evidence.tensor.checkpoints[checkpoint].label
        return NotMeasured(
            f"'over: runs' needs two or more training runs that differ only by seed, and '{label}' "
            "is the only one of its recipe with these scores, as are the others: train another seed, state "
            "'run_spread', or decide over documents"
        )
    return [checkpoint], None


_INFORMATIVE: dict[str, Any] = {"has_scope": True, "scope": "informative"}
METRICS = {
    "recovery": RuleMetric(
        measure=_ratio_metric(
            lambda found, _: ratio_of(found.data, found.students, found.teacher, spread=found.spread)
        ),
        bound="min",
        unit="fraction",
        hint="recovery, as a fraction of the teacher, e.g. 0.9",
        has_option=True,
        over_runs=True,
        unchanged=1.0,
        planned=ratio_margin,
        **_INFORMATIVE,
    ),
    "capped_recovery": RuleMetric(
        measure=_ratio_metric(_capped),
        bound="min",
        unit="fraction",
        hint="recovery in which no benchmark counts above its teacher, as a fraction of the teacher",
        **_INFORMATIVE,
    ),
    "chance_normalized_recovery": RuleMetric(
        measure=_ratio_metric(_above_chance),
        bound="min",
        unit="fraction",
        hint="recovery after subtracting the chance level, as a fraction of the teacher",
        over_runs=True,
        unchanged=1.0,
        planned=normalized_ratio_margin,
        **_INFORMATIVE,
    ),
    "score": RuleMetric(
        measure=score,
        bound="min",
        unit="fraction",
        hint="the checkpoint's own macro average",
        has_scope=True,
        planned=score_margin,
    ),
    "drop": RuleMetric(
        measure=drop,
        bound="max",
        unit="points",
        hint="teacher − student, in points",
        over_runs=True,
        unchanged=0.0,
        planned=drop_margin,
        **_INFORMATIVE,
    ),
}

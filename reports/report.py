"""The report: everything that its pages, tables and verdicts are made of, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.reports.analysis.averages import average_rows
from evalsuite.reports.analysis.gaps import GapPool, agreement_of, agreement_over_all, gap_rows
from evalsuite.reports.analysis.pairs import pair_rows
from evalsuite.reports.analysis.published import (
    PublishedOrder,
    PublishedRow,
    published_orders,
    published_rows,
)
from evalsuite.reports.analysis.replicates import Replicates, replicates_of
from evalsuite.reports.analysis.rows import Agreement, AverageRow, GapRow, PairRow, ScoreRow
from evalsuite.reports.analysis.scopes import ALL, Pool
from evalsuite.reports.analysis.scores import score_rows
from evalsuite.reports.analysis.variants import Variation, variations_of
from evalsuite.reports.extras import (
    Cost,
    Examined,
    Selection,
    read_costs,
    read_doctor,
    read_selections,
)
from evalsuite.reports.merging import MergedPlan, Subject
from evalsuite.reports.panel import Panel, load_panel
from evalsuite.reports.records import PROTOCOLS
from evalsuite.reports.run_folder import BenchmarkPlan, read_environment
from evalsuite.reports.training import Losses, read_losses

MOST_NAMED = 4
"""So many benchmarks a warning names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report."""

    panel: Panel
    scores: tuple[ScoreRow, ...]
    averages: tuple[AverageRow, ...]
    gaps: tuple[GapRow, ...]
    pairs: tuple[PairRow, ...]
    agreement: Agreement | None
    """Of the protocols, on what was asked both ways."""
    over_all: Agreement | None
    """Of the protocols, over all that each of them asks; only where a teacher writes worse than guessing."""
    published: tuple[PublishedRow, ...]
    orders: tuple[PublishedOrder, ...]
    replicates: tuple[Replicates, ...]
    doctor: tuple[Examined, ...]
    costs: tuple[Cost, ...]
    selections: tuple[Selection, ...]
    variations: tuple[Variation, ...]
    losses: tuple[Losses, ...]
    environments: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The checkpoints, each teacher followed by its students."""
        return self.panel.subjects

    @property
    def benchmarks(self) -> tuple[BenchmarkPlan, ...]:
        """All benchmarks, in the order of the plan."""
        return self.panel.merged.benchmarks

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols that have answers."""
        return tuple(name for name in PROTOCOLS if any(cell.protocol == name for cell in self.panel.cells))

    @property
    def teachers(self) -> tuple[int, ...]:
        """Indices of the teachers."""
        return tuple(i for i, subject in enumerate(self.subjects) if subject.is_teacher)

    def students(self, teacher: int | None = None) -> tuple[int, ...]:
        """Indices of the students of a teacher, or of all that have one."""
        return tuple(
            i
            for i, subject in enumerate(self.subjects)
            if subject.teacher is not None and teacher in (None, subject.teacher)
        )

    def average(self, subject: int, protocol: str, scope: str = ALL) -> AverageRow | None:
        """The average row of a subject."""
        for row in self.averages:
            if (row.subject, row.protocol, row.scope) == (subject, protocol, scope):
                return row
        return None

    def gap(self, subject: int, benchmark: str = ALL) -> GapRow | None:
        """The gap row of a student."""
        for row in self.gaps:
            if (row.subject, row.benchmark) == (subject, benchmark):
                return row
        return None


def build_report(runs: Sequence[Path], teacher: str | None = None, least: float = 0.0) -> Report:
    """Read runs and compute everything.

    Args:
        runs: run folders.
        teacher: label or weights_id of the only teacher; default: the plans' own.
        least: as `load_panel` takes it.

    Raises:
        RunFolderError, DataError, ConfigError: as `load_panel` and `evalsuite.reports.extras`.
    """
    panel = load_panel(runs, teacher, least)
    pools = {protocol: Pool(panel, protocol) for protocol in PROTOCOLS}
    averages = [row for pool in pools.values() for row in average_rows(pool)]
    pairs = [row for pool in pools.values() for row in pair_rows(pool)]
    both = GapPool(panel)
    gaps = gap_rows(both)
    doctor = read_doctor(runs)
    published = published_rows(pools["loglikelihood"])
    scores = score_rows(panel, pools)
    return Report(
        panel=panel,
        scores=tuple(scores),
        averages=tuple(averages),
        gaps=tuple(gaps),
        pairs=tuple(pairs),
        agreement=agreement_of(both),
        over_all=agreement_over_all(panel, averages, pairs) if any(row.floored for row in gaps) else None,
        published=tuple(published),
        orders=tuple(published_orders(pools["loglikelihood"], published)),
        replicates=tuple(replicates_of(panel, averages)),
        doctor=tuple(doctor),
        costs=tuple(read_costs(runs)),
        selections=tuple(read_selections(runs)),
        variations=tuple(variations_of(panel, pairs, gaps)),
        losses=tuple(read_losses(runs, _labels(panel.merged))),
        environments=tuple(read_environment(run) for run in runs),
        warnings=(
            *panel.warnings,
            *_too_thin(panel),
            *_teacher_gone(panel),
            *_undefined(panel, averages),
            *_incomplete(panel, averages),
            *_beyond(panel, averages),
            *_gained(panel, scores, gaps),
            *_floored(panel, gaps),
            *_artefacts(panel, gaps, doctor),
        ),
    )


def _labels(merged: MergedPlan) -> list[dict[str, str]]:
    """Per run, its own labels → those of the report."""
    shown = {subject.plan.weights_id: subject.label for subject in merged.subjects}
    return [{each.label: shown[each.weights_id] for each in plan.checkpoints} for plan in merged.plans]


def _too_thin(panel: Panel) -> list[str]:
    """Cells of one document, which no interval can be put around."""
    return [
        f"{cell.benchmark.title}: one document under {cell.protocol} is too few for any average."
        for cell in panel.cells
        if len(cell.documents) < 2
    ]


def _undefined(panel: Panel, averages: Sequence[AverageRow]) -> list[str]:
    """Whole averages whose recovery is undefined."""
    return [
        f"'{panel.subjects[row.subject].label}': recovery under {row.protocol} is undefined, as "
        f"{row.recovery.why}."
        for row in averages
        if row.scope == ALL and panel.subjects[row.subject].teacher is not None and row.recovery.why
    ]


def _teacher_gone(panel: Panel) -> list[str]:
    """Benchmarks that students answered and their teacher did not."""
    found = []
    for cell in panel.cells:
        teachers = {panel.subjects[i].teacher for i in cell.present} - {None}
        for teacher in sorted(index for index in teachers if index is not None):
            if teacher not in cell.present:
                place = f"{cell.benchmark.title}{f' at {cell.context:,} tokens' if cell.context else ''}"
                found.append(
                    f"{place}: the teacher '{panel.subjects[teacher].label}' has no comparable answers under "
                    f"{cell.protocol}; this part enters no recovery."
                )
    return found


def _incomplete(panel: Panel, averages: Sequence[AverageRow]) -> list[str]:
    """Averages over a part of the benchmarks; those over the same part are said together."""
    alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in averages:
        if row.scope == ALL and row.missing:
            key = row.protocol, row.missing, row.benchmarks
            alike.setdefault(key, []).append(f"'{panel.subjects[row.subject].label}'")
    found = []
    for (protocol, missing, there), labels in alike.items():
        one = len(labels) == 1
        average = "its average is" if one else "their averages are"
        not_ranked = f"and {'is' if one else 'are'} not ranked."
        if len(missing) > len(there):
            said = f"answered only {', '.join(there)} under {protocol}: {average} over these {not_ranked}"
        else:
            said = (
                f"{'lacks' if one else 'lack'} {', '.join(missing)} under {protocol}: {average} over the "
                f"other {len(there)} {not_ranked}"
            )
        found.append(f"{', '.join(labels)} {said}")
    return found


def _beyond(panel: Panel, averages: Sequence[AverageRow]) -> list[str]:
    """Students that are better than what they were made from."""
    found = []
    for protocol in PROTOCOLS:
        labels = [
            f"'{panel.subjects[row.subject].label}'"
            for row in averages
            if (row.scope, row.protocol) == (ALL, protocol)
            and row.recovery.interval is not None
            and row.recovery.interval.low > 1
        ]
        if labels:
            one = len(labels) == 1
            whose = "scores above its" if one else "score above their"
            found.append(
                f"{', '.join(labels)} {whose} teacher under {protocol}: what goes beyond 100 % was learned "
                "in training, not kept, and may hide what was lost. The headline names the best other one."
            )
    return found


def _gained(panel: Panel, scores: Sequence[ScoreRow], gaps: Sequence[GapRow]) -> list[str]:
    """Benchmarks on which students are better than what they were made from, unless their teacher is at the
    floor there anyway."""
    at_floor = {row.benchmark for row in gaps} if any(row.floored for row in gaps) else set()
    titles = {benchmark.name: benchmark.title for benchmark in panel.merged.benchmarks}
    found = []
    for protocol in PROTOCOLS:
        gained: dict[str, set[int]] = {}
        for row in scores:
            skipped = protocol == "generation" and row.benchmark in at_floor
            if row.protocol != protocol or skipped or row.recovery.point is None or row.deficit is None:
                continue
            if row.deficit.high < 0:
                gained.setdefault(row.benchmark, set()).add(row.subject)
        named = sorted(gained.items(), key=lambda item: -len(item[1]))
        said = ", ".join(
            f"{len(subjects)} student{'s' if len(subjects) > 1 else ''} in {titles[name]}"
            for name, subjects in named[:MOST_NAMED]
        )
        if said:
            more = f" and in {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            found.append(
                f"Above their teacher under {protocol}, by more than chance: {said}{more}. Recovery sets "
                "such gains against what was lost elsewhere."
            )
    return found


def _floored(panel: Panel, gaps: Sequence[GapRow]) -> list[str]:
    """Teachers that write so badly where both protocols were asked that little can be lost there."""
    said: dict[int, str] = {}
    for row in gaps:
        teacher = panel.subjects[row.subject].teacher
        if row.benchmark == ALL and row.floored and row.chance is not None and teacher is not None:
            unnamed = row.outcomes["teacher"]["extraction_failed"]
            said.setdefault(
                teacher,
                f"On what was asked both ways '{panel.subjects[teacher].label}' itself scores "
                f"{100 * row.written['teacher']:.1f} % when it writes, where guessing would score "
                f"{100 * row.chance:.1f} % ({100 * unnamed:.0f} % of its answers name no choice): its "
                "students can lose little there, and a small gap says little.",
            )
    return list(said.values())


def _artefacts(panel: Panel, gaps: Sequence[GapRow], doctor: Sequence[Examined]) -> list[str]:
    """What the doctor found, and gaps that its deviations could explain."""
    changed = {examined.weights_id: examined.changed for examined in doctor}
    found = [
        f"Doctor, '{examined.label}': {check.name}: {check.text or check.status}"
        for examined in doctor
        for check in examined.checks
        if check.status != "ok"
    ]
    for row in gaps:
        subject = panel.subjects[row.subject]
        if row.benchmark != ALL or subject.teacher is None:
            continue
        teacher = panel.subjects[subject.teacher]
        bound = changed.get(subject.plan.weights_id, 0.0) + changed.get(teacher.plan.weights_id, 0.0)
        if bound > 0 and abs(row.gap.point) <= bound:
            found.append(
                f"'{subject.label}': its gap of {100 * row.gap.point:.1f} points is not larger than what "
                f"numerical deviations could explain ({100 * bound:.1f} points of answers changed)."
            )
    return found

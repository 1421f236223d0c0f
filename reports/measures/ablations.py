"""Ablations: variants of a recipe and their difference from a baseline, under both protocols."""

from dataclasses import dataclass

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.variants import Ablation, Variant
from evalsuite.reports.findings import ablation_sentence, answered_all, repeat_sentences
from evalsuite.reports.report import Report
from evalsuite.reports.section import section


@dataclass(frozen=True, slots=True)
class AblationLine:
    """One student."""

    label: str
    change: str
    baseline: str
    cells: tuple[tuple[str, str, str, str, str], ...]
    """Per protocol: recovery, rank in the group, difference from the baseline in points, its interval, and
    its kind: `loss`, `gain`, `tie` or `none`."""


@dataclass(frozen=True, slots=True)
class AblationView:
    """One recipe and its variants."""

    title: str
    sentence: str
    lines: tuple[AblationLine, ...]
    seeds: tuple[str, ...]
    """Sentences about repetitions with other seeds."""


def ablation_views(report: Report) -> list[AblationView]:
    """One table per recipe with variants."""
    return [
        AblationView(
            title=ablation.base,
            sentence=ablation_sentence(report, ablation),
            lines=tuple(_line(report, ablation, member) for member in ablation.members),
            seeds=tuple(repeat_sentences(report, ablation)),
        )
        for ablation in report.ablations
    ]


def _line(report: Report, ablation: Ablation, member: Variant) -> AblationLine:
    return AblationLine(
        label=report.checkpoints[member.checkpoint].label,
        change=member.name or "none (base recipe)",
        baseline="" if member.partner is None else report.checkpoints[member.partner].label,
        cells=tuple(_cell(report, ablation, member, protocol) for protocol in PROTOCOLS),
    )


def _cell(
    report: Report, ablation: Ablation, member: Variant, protocol: str
) -> tuple[str, str, str, str, str]:
    row = report.average(member.checkpoint, protocol)
    if row is None or row.recovery.point is None:
        return formatting.NOTHING, "", "", "", "none"
    difference = member.differences.get(protocol)
    complete = answered_all(report, ablation, row)
    recovery = formatting.percent(row.recovery.point) if complete else formatting.NOTHING
    rank = _rank(report, ablation, row) if complete else ""
    if difference is None:
        return recovery, rank, "", "", "none"
    kind = "tie"
    if member.proven[protocol]:
        kind = "gain" if difference.point > 0 else "loss"
    return (
        recovery,
        rank,
        formatting.signed(100 * difference.point),
        formatting.span(difference),
        kind,
    )


def _rank(report: Report, ablation: Ablation, row: AverageRow) -> str:
    """Rank within the group, among students with scores on the same benchmarks."""
    rows = [report.average(member.checkpoint, row.protocol) for member in ablation.members]
    points = [
        other.recovery.point
        for other in rows
        if other is not None and other.benchmarks == row.benchmarks and other.recovery.point is not None
    ]
    if row.recovery.point is None or len(points) < 2:
        return ""
    return str(1 + sum(point > row.recovery.point for point in points))


@section("ablations", "Ablations", order=80)
def ablations_section(report: Report) -> list[AblationView] | None:
    """The section; None without data."""
    return ablation_views(report) or None

"""Recipes that change one thing, beside what they are to be compared with, under both protocols."""

from dataclasses import dataclass

from evalsuite.reports import words
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.variants import Variant, Variation
from evalsuite.reports.findings import answered_all, repeat_sentences, variation_sentence
from evalsuite.reports.records import PROTOCOLS
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class VariantLine:
    """One student."""

    label: str
    name: str
    partner: str
    cells: tuple[tuple[str, str, str, str, str], ...]
    """Per protocol: recovery, rank in the group, difference from the partner in points, its interval, and
    whether that is a `loss`, a `gain` or a `tie`."""


@dataclass(frozen=True, slots=True)
class VariantsView:
    """One recipe with its variants."""

    title: str
    sentence: str
    lines: tuple[VariantLine, ...]
    repeats: tuple[str, ...]
    """What further seeds say, in sentences."""


def variants_views(report: Report) -> list[VariantsView]:
    """A table per recipe that has variants."""
    return [
        VariantsView(
            title=variation.base,
            sentence=variation_sentence(report, variation),
            lines=tuple(_line(report, variation, member) for member in variation.members),
            repeats=tuple(repeat_sentences(report, variation)),
        )
        for variation in report.variations
    ]


def _line(report: Report, variation: Variation, member: Variant) -> VariantLine:
    return VariantLine(
        label=report.subjects[member.subject].label,
        name=member.name or "the plain recipe",
        partner="" if member.partner is None else report.subjects[member.partner].label,
        cells=tuple(_cell(report, variation, member, protocol) for protocol in PROTOCOLS),
    )


def _cell(
    report: Report, variation: Variation, member: Variant, protocol: str
) -> tuple[str, str, str, str, str]:
    row = report.average(member.subject, protocol)
    if row is None or row.recovery.point is None:
        return words.NOTHING, "", "", "", "none"
    difference = member.differences.get(protocol)
    whole = answered_all(report, variation, row)
    recovery = words.percent(row.recovery.point) if whole else words.NOTHING
    rank = _rank(report, variation, row) if whole else ""
    if difference is None:
        return recovery, rank, "", "", "none"
    kind = "gain" if difference.low > 0 else "loss" if difference.high < 0 else "tie"
    return (
        recovery,
        rank,
        words.signed(100 * difference.point),
        words.span(difference),
        kind,
    )


def _rank(report: Report, variation: Variation, row: AverageRow) -> str:
    """Rank within the group, among those that answered the same benchmarks."""
    rows = [report.average(member.subject, row.protocol) for member in variation.members]
    points = [
        other.recovery.point
        for other in rows
        if other is not None and other.benchmarks == row.benchmarks and other.recovery.point is not None
    ]
    if row.recovery.point is None or len(points) < 2:
        return ""
    return str(1 + sum(point > row.recovery.point for point in points))

"""Ablations: variants of a recipe and their difference from a baseline, under both protocols."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.blocks import Block, Part, Text
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.ablations.sentences import ablation_sentence, answered_all, repeat_sentences
from evalsuite.reports.measures.ablations.variants import Ablation, Variant, ablations_of
from evalsuite.reports.report import Report
from evalsuite.reports.section import section
from evalsuite.reports.table import CSV, PAGE, Column, Table, label_column, label_of, weights_column


@dataclass(frozen=True, slots=True)
class AblationRow:
    """One student among the variants of its recipe."""

    ablation: Ablation
    member: Variant

    @property
    def checkpoint(self) -> int:
        """Index of the student."""
        return self.member.checkpoint


def ablations(report: Report) -> list[Ablation]:
    """The recipes with variants."""
    return ablations_of(report.tensor, report.pairs, report.gaps)


def ablation_rows(ablation: Ablation) -> list[AblationRow]:
    """The students of one recipe."""
    return [AblationRow(ablation, member) for member in ablation.members]


def _complete(report: Report, row: AblationRow, protocol: str) -> AverageRow | None:
    """The student's average if it has scores on all benchmarks of the group."""
    average = report.average(row.checkpoint, protocol)
    return average if average is not None and answered_all(report, row.ablation, average) else None


def _rank(report: Report, row: AblationRow, protocol: str) -> int | None:
    """Rank within the group, among students with scores on the same benchmarks."""
    own = _complete(report, row, protocol)
    if own is None or own.recovery.point is None:
        return None
    rows = [report.average(member.checkpoint, protocol) for member in row.ablation.members]
    points = [
        other.recovery.point
        for other in rows
        if other is not None and other.benchmarks == own.benchmarks and other.recovery.point is not None
    ]
    return None if len(points) < 2 else 1 + sum(point > own.recovery.point for point in points)


def _kind(row: AblationRow, protocol: str) -> str:
    difference = row.member.differences.get(protocol)
    if difference is None:
        return "none"
    return "tie" if not row.member.proven[protocol] else "gain" if difference.point > 0 else "loss"


def _columns(protocol: str) -> Iterator[Column[AblationRow]]:
    """Recovery, rank and difference from the baseline under one protocol."""
    title = formatting.PROTOCOL_TITLES[protocol]

    def column(name: str, header: str, value: Callable[[Report, AblationRow], Any], **how: Any) -> Any:
        return Column(f"{name}_{protocol}", header, value=value, over=title, **how)

    def recovery(report: Report, row: AblationRow) -> Any:
        average = _complete(report, row, protocol)
        return None if average is None else average.recovery

    yield column("recovery", "recovery", recovery, kind="estimate", unit="percent")
    yield column("rank", "#", lambda report, row: _rank(report, row, protocol), outputs=(*CSV, *PAGE))
    yield column(
        "difference",
        "score difference",
        lambda report, row: row.member.differences.get(protocol),
        kind="interval",
        unit="points",
        css=lambda report, row: _kind(row, protocol),
    )


ABLATIONS: Table[AblationRow] = Table(
    name="ablations",
    title="Ablations",
    rows=lambda report: [row for ablation in report.of(ablations) for row in ablation_rows(ablation)],
    columns=(
        Column("recipe", value=lambda report, row: row.ablation.base, unit="text", outputs=CSV),
        label_column(),
        weights_column(),
        Column(
            "change",
            value=lambda report, row: row.member.name or "none (base recipe)",
            unit="text",
            outputs=(*CSV, *PAGE),
        ),
        Column("baseline", value=lambda report, row: label_of(report, row.member.partner), unit="text"),
        *(column for protocol in PROTOCOLS for column in _columns(protocol)),
    ),
    json_rows=lambda report: ABLATIONS.cells(report),
)
MEASURES.add("ablations", Measure(tables=(ABLATIONS,), json={"ablations": ablations}))


@section("ablations", "Ablations", order=68)
def ablations_section(report: Report) -> list[Block]:
    """One table per recipe with variants."""
    return [
        Part(
            ablation.base,
            [
                Text(ablation_sentence(report, ablation)),
                ABLATIONS.of(ablation_rows(ablation)),
                *(Text(sentence, "note") for sentence in repeat_sentences(report, ablation)),
            ],
        )
        for ablation in report.of(ablations)
    ]

"""Pairwise comparison: differences between all pairs of checkpoints."""

from dataclasses import dataclass

from evalsuite.reports import formatting
from evalsuite.reports.analysis import findings
from evalsuite.reports.page.section import section
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class PairLine:
    """Difference between two checkpoints."""

    first: str
    second: str
    protocol: str
    difference: str
    interval: str
    wins_losses: str
    holm: str
    mde: str
    kind: str
    sort: float
    sort_holm: float


def pair_lines(report: Report) -> list[PairLine]:
    """One line per pair of checkpoints and protocol."""
    return [
        PairLine(
            first=report.checkpoints[row.first].label,
            second=report.checkpoints[row.second].label,
            protocol=formatting.PROTOCOL_TITLES[row.protocol],
            difference=formatting.signed(100 * row.difference.point),
            interval=formatting.span(row.difference),
            wins_losses=f"{formatting.count(row.wins)} : {formatting.count(row.losses)}",
            holm="runs of one recipe" if row.are_replicates else p_value(row.p_holm),
            mde=formatting.NOTHING if row.mde is None else f"{100 * row.mde:.1f}",
            kind="tie" if not row.proven else "gain" if row.difference.point > 0 else "loss",
            sort=row.difference.point,
            sort_holm=row.p_holm,
        )
        for row in report.pairs
    ]


def p_value(p: float) -> str:
    """A p-value to two digits, never ``0.00``."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


@dataclass(frozen=True, slots=True)
class PairsView:
    """The section."""

    lines: list[PairLine]
    replicates: list[str]
    """Sentences about runs of one recipe."""


@section("pairs", "Pairwise comparison", order=85, nav="Pairwise")
def pairs_view(report: Report) -> PairsView | None:
    """All pairs of checkpoints; None if there is only one checkpoint."""
    lines = pair_lines(report)
    sentences = [s for protocol in report.protocols for s in findings.replicate_sentences(report, protocol)]
    return PairsView(lines, sentences) if lines else None

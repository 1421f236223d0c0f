"""Pairwise comparison: differences between all pairs of checkpoints."""

from dataclasses import dataclass

from evalsuite.reports import findings, formatting
from evalsuite.reports.page.figures import Figure, text
from evalsuite.reports.page.plots import heatmap
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
            sort=round(row.difference.point, 6),
            sort_holm=round(row.p_holm, 6),
        )
        for row in report.pairs
    ]


def p_value(p: float) -> str:
    """A p-value to two digits, never ``0.00``."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _map(report: Report, protocol: str) -> Figure | None:
    """Differences of all pairs as a matrix; None for fewer than three checkpoints."""
    rows = [row for row in report.pairs if row.protocol == protocol]
    order = [i for i in range(len(report.checkpoints)) if any(i in (row.first, row.second) for row in rows)]
    if len(order) < 3:
        return None
    place = {checkpoint: at for at, checkpoint in enumerate(order)}
    size = len(order)
    differences: list[list[float | None]] = [[None] * size for _ in range(size)]
    details: list[list[list[object]]] = [[[] for _ in range(size)] for _ in range(size)]
    for row in rows:
        ties = row.documents - row.wins - row.losses
        note = "runs of one recipe" if row.are_replicates else f"p = {p_value(row.p_holm)} (Holm)"
        mde = formatting.NOTHING if row.mde is None else f"{100 * row.mde:.1f}"
        for sign, (one, other), (wins, losses) in (
            (1, (row.first, row.second), (row.wins, row.losses)),
            (-1, (row.second, row.first), (row.losses, row.wins)),
        ):
            differences[place[one]][place[other]] = sign * 100 * row.difference.point
            details[place[one]][place[other]] = [note, mde, wins, losses, ties]
    labels = [report.checkpoints[i].label for i in order]
    most = max((abs(value) for line in differences for value in line if value is not None), default=1.0)
    return heatmap(
        labels,
        labels,
        differences,
        title=f"Differences under {formatting.PROTOCOL_TITLES[protocol]}",
        caption="Row minus column, in points of the macro average.",
        scale=((0.0, "var(--loss)"), (0.5, "var(--card)"), (1.0, "var(--accent)")),
        low=-most,
        high=most,
        unit="points",
        trace={
            "customdata": details,
            "x": [text(label) for label in labels],
            "y": [text(label) for label in labels],
            "hovertemplate": (
                "%{y} − %{x}: <b>%{z:+.1f}</b> points<br>%{customdata[0]}, MDE80 %{customdata[1]} points<br>"
                "%{customdata[2]} wins, %{customdata[3]} losses, %{customdata[4]} ties<extra></extra>"
            ),
        },
        table=None,
        row_height=20,
        is_wide=size > 8,
    )


@dataclass(frozen=True, slots=True)
class PairsView:
    """The section."""

    lines: list[PairLine]
    maps: list[Figure]
    replicates: list[str]
    """Sentences about runs of one recipe."""


@section("pairs", "Pairwise comparison", order=85, nav="Pairwise")
def pairs_view(report: Report) -> PairsView | None:
    """All pairs of checkpoints; None if there is only one checkpoint."""
    lines = pair_lines(report)
    sentences = [s for protocol in report.protocols for s in findings.replicate_sentences(report, protocol)]
    maps = [_map(report, protocol) for protocol in report.protocols]
    return PairsView(lines, [each for each in maps if each], sentences) if lines else None

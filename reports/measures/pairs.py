"""Pairwise comparison: differences between all pairs of checkpoints."""

from math import sqrt
from typing import Any

from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import PairRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.figures.figure import Figure, text
from evalsuite.reports.figures.plots import heatmap
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import student_quantile
from evalsuite.reports.table import CSV, PAGE, Column, Table, label_of


def p_value(p: float) -> str:
    """A p-value to two digits, never ``0.00``."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _p(row: PairRow, before: str = "", after: str = "") -> str:
    return "runs of one recipe" if row.are_replicates else f"{before}{p_value(row.p_holm)}{after}"


def _mde(row: PairRow) -> str:
    return formatting.NOTHING if row.mde is None else f"{100 * row.mde:.1f}"


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
        for sign, (one, other), (wins, losses) in (
            (1, (row.first, row.second), (row.wins, row.losses)),
            (-1, (row.second, row.first), (row.losses, row.wins)),
        ):
            differences[place[one]][place[other]] = sign * 100 * row.difference.point
            details[place[one]][place[other]] = [_p(row, "p = ", " (Holm)"), _mde(row), wins, losses, ties]
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


def _checkpoint(name: str) -> tuple[Column[Any], Column[Any]]:
    """Label and weights_id of one of both."""

    def index(row: PairRow) -> int:
        return row.first if name == "first" else row.second

    return (
        Column(name, value=lambda report, row: label_of(report, index(row)), unit="text", better="lower"),
        Column(
            f"{name}_weights_id",
            value=lambda report, row: report.checkpoints[index(row)].weights_id,
            unit="text",
            outputs=CSV,
        ),
    )


def _kind(report: Report, row: PairRow) -> str:
    return "tie" if not row.proven else "gain" if row.difference.point > 0 else "loss"


def replicate_sentences(report: Report, protocol: str, scope: str | None = None) -> list[str]:
    """Describe the spread of recovery over training seeds; the pooled spread tells what is noise.

    Nothing if recoveries are compared over another `scope`.
    """
    groups = [
        group for group in report.replicates if group.protocol == protocol and scope in (None, group.scope)
    ]
    if not groups:
        return []
    which_benchmarks = "the informative" if groups[0].scope == INFORMATIVE else "all"
    how = f"{formatting.PROTOCOL_TITLES[protocol]}, over {which_benchmarks} benchmarks"
    degrees = sum(len(group.checkpoints) - 1 for group in groups)
    squares = sum((len(group.checkpoints) - 1) * group.deviation**2 for group in groups)
    least = sqrt(2 * squares / degrees) * student_quantile(degrees, 0.975)
    names = [", ".join(report.checkpoints[i].label for i in group.checkpoints) for group in groups]
    tie = (
        f"a difference between single runs of two recipes exceeds the noise of training from "
        f"{100 * least:.1f} points on (t, {degrees} degrees of freedom)."
    )
    if len(groups) == 1:
        (group,) = groups
        return [
            f"{len(group.checkpoints)} training runs that differ only in seed ({names[0]}) recover "
            f"{formatting.percent(group.mean)} % on average under {how}, with a standard deviation of "
            f"{100 * group.deviation:.2f} points: {tie}"
        ]
    each = [
        f"{formatting.percent(group.mean)} ± {100 * group.deviation:.2f} ({which})"
        for group, which in zip(groups, names, strict=True)
    ]
    return [
        f"Recovery of training runs that differ only in seed, in % ± standard deviation, under {how}: "
        f"{'; '.join(each)}. Pooled, {tie}"
    ]


PAIRS: Table[PairRow] = Table(
    name="pairs",
    title="Pairwise comparison",
    rows=lambda report: report.pairs,
    columns=(
        *_checkpoint("first"),
        *_checkpoint("second"),
        Column(
            "protocol",
            unit="text",
            better="lower",
            show=lambda report, row: formatting.PROTOCOL_TITLES[row.protocol],
        ),
        Column("documents", outputs=CSV),
        Column(
            "difference",
            "points",
            kind="interval",
            better="higher",
            show=lambda report, row: formatting.signed(100 * row.difference.point),
            css=_kind,
        ),
        Column(
            "interval",
            "95 % interval",
            outputs=PAGE,
            show=lambda report, row: formatting.span(row.difference),
        ),
        Column(
            "wins : losses",
            outputs=PAGE,
            show=lambda report, row: f"{formatting.count(row.wins)} : {formatting.count(row.losses)}",
        ),
        Column("wins", outputs=CSV),
        Column("losses", outputs=CSV),
        Column("p", outputs=CSV),
        Column(
            "p_holm",
            "p, Holm",
            "p-value of the difference, corrected for all pairs of the protocol",
            better="lower",
            show=lambda report, row: _p(row),
        ),
        Column("mde", "MDE, points", show=lambda report, row: _mde(row)),
        Column("are_replicates", value=lambda report, row: int(row.are_replicates), outputs=CSV),
    ),
    order=85,
    intro=(
        "Difference of macro averages, first minus second, on the documents that both have. Wins : losses "
        "counts the documents on which the first, or the second, scores higher. The MDE (minimum detectable "
        "effect) is the smallest true difference that these documents detect with 80 % power."
    ),
    notes=lambda report: [
        sentence for protocol in report.protocols for sentence in replicate_sentences(report, protocol)
    ],
    figures=lambda report: [
        figure for protocol in report.protocols if (figure := _map(report, protocol)) is not None
    ],
    fold="pair",
)
MEASURES.add("pairs", Measure(tables=(PAIRS,)))

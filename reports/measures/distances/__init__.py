"""Distance from the teacher: students on a scale of rounded teachers."""

from collections.abc import Callable, Sequence
from math import log10
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from evalsuite.reports import formatting
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.figures.figure import Figure, Values, color, figure, text
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.distances.rows import DistanceRow, answer_distance, distance_rows
from evalsuite.reports.measures.leaderboard import Entry
from evalsuite.reports.records.distances import ANSWERS, DISTANCE_FILE
from evalsuite.reports.report import Report
from evalsuite.reports.rules.evidence import NO_TEACHER, Evidence
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.table import CSV, Column, Table, label_column, label_of

GROUPS = {"token_class": "token class", "positions": "position in the text"}
"""Parts of a text that have a figure of their own."""
WHAT = (
    "KL divergence and top-1 agreement compare the next-token distributions of both models over the full "
    "vocabulary."
)
YARDSTICK = (
    "The yardstick (dotted) is the same teacher rounded to fewer bits: symmetric round-to-nearest in blocks "
    "of 64, every linear layer and the head. A teacher that was dequantized from a format reads as zero at "
    "that format."
)
TRAINED_AGAIN = (
    "(trained again): other weights than those that were scored; the same recipe made them when it was "
    "trained again."
)
CLASSES = ("copied", "repeated", "frequent", "rare")
"""Token classes, from those that need recall to those that do not."""


def distances(report: Report) -> list[DistanceRow]:
    """KL divergence and top-1 agreement per text and part of it, with the roundings of the yardstick."""
    return distance_rows(report.tensor, _read(report.tensor))


def distance_of(report: Report, checkpoint: int, text: str = ANSWERS) -> DistanceRow | None:
    """The distance of a student over a whole text; that of its recipe, trained again, if none other."""
    rows = (row for row in report.of(distances) if (row.text, row.kind) == (text, "all"))
    return next((row for row in rows if row.checkpoint == checkpoint), None)


def _figures(report: Report) -> list[Figure]:
    """A yardstick per teacher and text, and students by part of the text."""
    figures = []
    texts = dict.fromkeys((row.teacher, row.text) for row in report.of(distances))
    for teacher, name in sorted(texts, key=lambda each: (each[0], each[1] != ANSWERS, each[1].lower())):
        rows = [row for row in report.of(distances) if (row.teacher, row.text) == (teacher, name)]
        place = "right answers" if name == ANSWERS else name
        if len({each for each, _ in texts}) > 1:
            place += f", teacher {report.checkpoints[teacher].label}"
        figures.append(_yardstick(report, [row for row in rows if row.kind == "all"], place))
        figures += [
            _parts(report, part, place, title)
            for kind, title in GROUPS.items()
            if (part := [row for row in rows if row.kind == kind and row.checkpoint is not None])
        ]
    return figures


def _notes(report: Report) -> list[str]:
    """What all figures need to be read."""
    if not report.of(distances):
        return []
    retrained = any(row.is_retrained for row in report.of(distances))
    return [f"{_sentence(report)} {WHAT}".strip(), YARDSTICK, *([TRAINED_AGAIN] if retrained else [])]


def _sentence(report: Report) -> str:
    """Where the nearest student lies on the scale; empty if no student is on it."""
    rows = [row for row in report.of(distances) if row.kind == "all" and row.text == ANSWERS]
    placed = [row for row in rows if row.checkpoint is not None and row.equivalent_bits.point is not None]
    if not placed:
        return ""
    nearest = min(placed, key=lambda row: row.kl.point)
    return (
        f"At the right answers {_name(report, nearest)} is as far from its teacher as "
        f"rounding it to {nearest.equivalent_bits.point:.1f} bits."
    )


def _name(report: Report, row: DistanceRow) -> str:
    if row.checkpoint is None:
        return f"{row.bits}-bit"
    return report.checkpoints[row.checkpoint].label + (" (trained again)" if row.is_retrained else "")


def _yardstick(report: Report, rows: Sequence[DistanceRow], place: str) -> Figure:
    """KL divergence of the students as points between the roundings, which are dotted lines."""
    students = sorted((row for row in rows if row.checkpoint is not None), key=lambda row: row.kl.point)
    marks = [row for row in rows if row.checkpoint is None and row.kl.point > 0]
    places = list(range(len(students)))
    names = [_name(report, row) for row in students]
    documents = " or ".join(formatting.count(n) for n in sorted({row.documents for row in rows}))
    trace = go.Scatter(
        x=[row.kl.point for row in students],
        y=places,
        error_x={
            "array": [row.kl.high - row.kl.point for row in students],
            "arrayminus": [row.kl.point - row.kl.low for row in students],
            "thickness": 1.2,
            "width": 0,
            "color": "var(--accent)",
        },
        mode="markers",
        marker={"size": 9, "color": "var(--accent)"},
        hovertext=[text(f"{name}: {_spoken(row)}") for name, row in zip(names, students, strict=True)],
        hoverinfo="text",
    )
    line = {"color": "var(--ref)", "width": 1.3, "dash": "dot"}
    axis = {
        "tickvals": places,
        "ticktext": [text(name) for name in names],
        "autorange": "reversed",
        "zeroline": False,
    }
    return figure(
        [trace],
        {
            "xaxis": {"title": {"text": "KL, nats per token"}, "type": "log", "dtick": 1},
            "yaxis": {**axis, "showgrid": False, "zeroline": False},
            "shapes": [
                {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": row.kl.point, "x1": row.kl.point}
                | {"line": line}
                for row in marks
            ],
            "annotations": [
                # On a logarithmic axis Plotly takes the position of an annotation as an exponent.
                {"x": log10(row.kl.point), "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
                | {"text": str(row.bits)}
                for row in marks
            ],
            "showlegend": False,
            "margin": {"t": 30},
        },
        title=f"Distance: {place}",
        caption=(
            f"KL(teacher ‖ student) over {documents} documents. Dotted: the teacher rounded to so many bits."
        ),
        height=24 * len(students) + 110,
        table=Values(
            ("model", "KL, nats per token", "same top token %", "equivalent bits"),
            tuple((_name(report, row), *_numbers(row)) for row in [*students, *marks]),
        ),
        is_wide=True,
    )


def _numbers(row: DistanceRow) -> tuple[str, str, str]:
    bits = row.equivalent_bits.point
    return (
        f"{row.kl.point:.3g} ({row.kl.low:.3g} to {row.kl.high:.3g})",
        f"{formatting.percent(row.agreement.point)} ({formatting.span(row.agreement)})",
        formatting.NOTHING if bits is None else f"{bits:.1f}",
    )


def _spoken(row: DistanceRow) -> str:
    kl, agreement, bits = _numbers(row)
    found = f"KL {kl} nats, same top token {agreement} %"
    return found if bits == formatting.NOTHING else f"{found}, as far as {bits} bits"


def _natural(group: str) -> tuple[int, str]:
    """Ranges of positions by their start; token classes in the order of `CLASSES`, then other names."""
    start = group.partition("-")[0]
    if start.isdecimal():
        return int(start), group
    return (CLASSES.index(group) if group in CLASSES else len(CLASSES)), group


def _parts(report: Report, rows: Sequence[DistanceRow], place: str, what: str) -> Figure:
    """KL divergence of every student by a part of the text, one group of bars per part."""
    groups = sorted({row.group for row in rows}, key=_natural)
    students = list(dict.fromkeys(_name(report, row) for row in rows))
    found = {(_name(report, row), row.group): row for row in rows}
    traces = []
    for index, student in enumerate(students):
        mine = [found.get((student, group)) for group in groups]
        traces.append(
            go.Bar(
                x=list(range(len(groups))),
                y=[None if row is None else row.kl.point for row in mine],
                name=text(student),
                marker={"color": color(index)},
                hovertext=["" if r is None else text(f"{student}, {r.group}: {_spoken(r)}") for r in mine],
                hoverinfo="text",
            )
        )
    return figure(
        traces,
        {
            "xaxis": {"tickvals": list(range(len(groups))), "ticktext": [text(each) for each in groups]},
            "yaxis": {"title": {"text": "KL, nats per token"}, "rangemode": "tozero"},
            "barmode": "group",
            "showlegend": len(students) > 1,
        },
        title=f"Distance by {what}: {place}",
        height=300,
        table=Values(
            ("model", what, "KL, nats per token", "same top token %", "equivalent bits"),
            tuple((_name(report, row), row.group, *_numbers(row)) for row in rows),
        ),
        is_wide=len(students) > 8,
    )


DISTANCES: Table[DistanceRow] = Table(
    name="distances",
    title="Distance from the teacher",
    rows=lambda report: report.of(distances),
    columns=(
        label_column(),
        Column("trained_again", value=lambda report, row: int(row.is_retrained)),
        Column("bits"),
        Column("teacher", value=lambda report, row: label_of(report, row.teacher), unit="text"),
        Column("text", unit="text"),
        Column("kind", unit="text"),
        Column("group", unit="text"),
        Column("documents"),
        Column("tokens"),
        Column("kl", "KL, nats per token", kind="interval", digits=3),
        Column("agreement", "same top token", kind="interval", unit="percent"),
        Column("equivalent_bits", kind="estimate"),
    ),
    order=45,
    anchor="distance",
    notes=_notes,
    figures=_figures,
    shows_rows=False,
)


def _read(tensor: ResultTensor) -> pd.DataFrame | None:
    return DISTANCE_FILE.read_all(tensor.merged.runs)


def kl(evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int) -> Measurement | NotMeasured:
    """KL(teacher ‖ student) at the right answers, in nats per token; no other text is gated."""
    if evidence.tensor.checkpoints[checkpoint].teacher is None:
        return NO_TEACHER
    frame = evidence.of(_read)
    found = frame is not None and answer_distance(evidence.tensor, frame, checkpoint, rule.benchmark)
    if not found:
        label = evidence.tensor.checkpoints[checkpoint].label
        what = "" if rule.benchmark is None else f" on '{rule.benchmark}'"
        return NotMeasured(
            f"the run has no distances of '{label}'{what}: repeat `evalsuite distance` with it"
        )
    contrast, documents = found
    return Measurement(contrast, documents, ())


KL = RuleMetric(
    measure=kl,
    bound="max",
    unit="nats",
    hint="KL(teacher ‖ student) at the right answers, in nats per token, e.g. 0.3",
    has_option=True,
    protocols="none",
)


def _of(report: Report, entry: Entry) -> DistanceRow | None:
    """The distance at the answers of all benchmarks; None in the scopes of categories."""
    return distance_of(report, entry.checkpoint) if entry.average.scope in (ALL, INFORMATIVE) else None


def _retrained(distance: DistanceRow | None) -> str:
    if distance is None or not distance.is_retrained:
        return ""
    return "† measured on other weights: the same recipe, trained again"


def kl_column(distance: Callable[[Report, Any], DistanceRow | None], **how: Any) -> Column[Any]:
    """The KL divergence of a row's student from its teacher.

    Args:
        distance: of a row; None where it was not measured.
    """
    return Column(
        "kl",
        title="KL, nats",
        hint="KL(teacher ‖ student) per token at the right answers of all benchmarks, over the vocabulary.",
        value=lambda report, row: None if (found := distance(report, row)) is None else found.kl,
        kind="interval",
        better="lower",
        digits=3,
        with_interval=False,
        note=lambda report, row: _retrained(distance(report, row)),
        **how,
    )


COLUMNS: tuple[Column[Entry], ...] = (
    kl_column(_of, outputs=("csv", "page")),
    Column(
        "equivalent_bits",
        title="bits",
        hint="Bits of the rounding of the teacher that is as far from it.",
        value=lambda report, entry: None if (row := _of(report, entry)) is None else row.equivalent_bits,
        outputs=("csv", "page"),
        with_interval=False,
        note=lambda report, entry: _retrained(_of(report, entry)),
        kind="estimate",
        better="higher",
    ),
    Column(
        "distance_trained_again",
        title="distance of the recipe, trained again",
        hint="1 if KL and bits were measured on other weights: the same recipe, trained again.",
        value=lambda report, entry: None if (row := _of(report, entry)) is None else int(row.is_retrained),
        outputs=CSV,
    ),
)
MEASURES.add("distances", Measure(tables=(DISTANCES,), columns=COLUMNS, metrics={"kl": KL}))

"""Probes of recurrent states: how fast they decay, how full they are, and what they hold of a needle.

A document counts once: its heads are averaged, or the head with the longest memory is taken. Intervals are
Student's t over documents. The readout is that of the head whose mean over the documents is largest, as
single heads retrieve (arXiv 2404.15574).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from statistics import fmean
from typing import Literal

import numpy as np
import pandas as pd
from markupsafe import Markup

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.blocks import Block, Part, Text, Texts, charts
from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.figures.plots import Axis, Curve, Point, heatmap
from evalsuite.reports.figures.small_multiples import small_multiples
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.records.probes import PROBE_FILE, SEGMENTS
from evalsuite.reports.report import Report
from evalsuite.reports.section import section
from evalsuite.reports.statistics.intervals import Interval, student_quantile
from evalsuite.reports.table import Column, Table, label_column, weights_column

METHOD = "Student's t over documents"
FOUND, MISSED = "found", "missed"
DEPTHS = ((0.0, 25.0), (25.0, 50.0), (50.0, 75.0), (75.0, 100.0))
"""Ranges of depths in percent; the last bound belongs to its range."""
_NUMBERS = ("log_decay", "slowest_log_decay", "beta", "write", "norm", "rank", "retained", "readout")
SHARE, POSITIVE = (0.0, 1.0), (0.0, inf)
"""Ranges of values."""
LEAST = 2
"""Documents that an interval needs."""
Kind = Literal["all", "answer", "depth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One layer of one checkpoint on one segment of some documents."""

    checkpoint: int
    benchmark: str
    context: int
    kind: Kind
    """What `group` names."""
    group: str
    """`all`; `found` or `missed`, whether all tokens of the answer are the most likely ones; or depths."""
    layer: int
    mixer: str
    segment: str
    """`before`, `needle`, `after` or `question`."""
    documents: int
    found: int
    """Documents whose answer is right in all tokens."""
    tokens_right: Estimate
    """Share of the answer's tokens that are the most likely one, given the answer before them."""
    half_life: Estimate
    """Tokens after which half of the state is left, by the median head and its mean over channels; undefined
    without decay."""
    longest_half_life: Estimate
    """The same by the head and channel that decays least."""
    beta: Estimate
    """Write strength of the delta rule; undefined for additive mixers."""
    write: Estimate
    """Norm of a write ÷ norm of the state after the segment."""
    norm: Estimate
    """Frobenius norm of the state after the segment."""
    rank: Estimate
    """Effective rank of that state."""
    retained: Estimate
    """Share of the write of the needle's value that the state still holds; undefined before the needle."""
    readout: Estimate
    """Share of the readout of the best head that goes to the value; of the question alone."""
    readout_head: int | None
    """That head."""


def probe_rows(tensor: ResultTensor, frame: pd.DataFrame | None) -> list[ProbeRow]:
    """Rows of every checkpoint of the report, benchmark, context, group, layer and segment.

    Segments are told apart over all documents; the groups of answers and of depths have the question alone.

    Args:
        tensor: names the checkpoints.
        frame: as `evalsuite.reports.records.probes.PROBE_FILE` reads it; None for no rows.
    """
    if frame is None:
        return []
    found: list[ProbeRow] = []
    frame = frame.sort_values(["doc_id", "head"], kind="stable")
    for checkpoint, each in enumerate(tensor.checkpoints):
        mine = frame[frame["weights_id"] == each.weights_id]
        for benchmark, context in sorted(set(zip(mine["benchmark"], mine["context"], strict=True))):
            part = mine[(mine["benchmark"] == benchmark) & (mine["context"] == context)]
            for kind, group, rows in _groups(part):
                for layer, segment, of_layer in _layers(rows):
                    found.append(_row(checkpoint, benchmark, context, kind, group, layer, segment, of_layer))
    return found


def _groups(frame: pd.DataFrame) -> Iterator[tuple[Kind, str, pd.DataFrame]]:
    """Groups of two documents or more."""
    question = frame[frame["segment"] == "question"]
    right = question["answer_right"] == question["answer_tokens"]
    parts: list[tuple[Kind, str, pd.DataFrame]] = [
        ("all", "all", frame),
        ("answer", FOUND, question[right]),
        ("answer", MISSED, question[~right]),
    ]
    for low, high in DEPTHS:
        last = high == DEPTHS[-1][1]
        inside = question["depth"].between(low, high, inclusive="both" if last else "left")
        parts.append(("depth", f"{low:g}-{high:g} %", question[inside]))
    yield from ((kind, group, rows) for kind, group, rows in parts if rows["doc_id"].nunique() >= LEAST)


def _layers(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    parts = dict(iter(frame.groupby(["layer", "segment"], sort=True)))
    for layer in sorted(frame["layer"].unique()):
        for segment in SEGMENTS:
            rows = parts.get((layer, segment))
            if rows is not None and rows["doc_id"].nunique() >= LEAST:
                yield int(layer), segment, rows


def _row(
    checkpoint: int,
    benchmark: str,
    context: int,
    kind: Kind,
    group: str,
    layer: int,
    segment: str,
    rows: pd.DataFrame,
) -> ProbeRow:
    """Estimates of one layer; `rows` are its documents and heads on one segment, heads within documents."""
    heads = int(rows["head"].max()) + 1
    wide = {name: rows[name].to_numpy(dtype=float).reshape(-1, heads) for name in _NUMBERS}
    tokens, right = (rows[f"answer_{name}"].to_numpy()[::heads] for name in ("tokens", "right"))
    best = None if np.isnan(wide["readout"]).any() else int(wide["readout"].mean(axis=0).argmax())
    stateless = "softmax attention has no state"
    missing = stateless if np.isnan(wide["norm"]).all() else ""
    return ProbeRow(
        checkpoint=checkpoint,
        benchmark=benchmark,
        context=context,
        kind=kind,
        group=group,
        layer=layer,
        mixer=str(rows["mixer"].iloc[0]),
        segment=segment,
        documents=len(tokens),
        found=int((right == tokens).sum()),
        tokens_right=_mean(right / tokens, "", bounds=SHARE),
        half_life=_half_life(np.median(wide["log_decay"], axis=1), missing),
        longest_half_life=_half_life(wide["slowest_log_decay"].max(axis=1), missing),
        beta=_mean(wide["beta"].mean(axis=1), missing or "the mixer adds its writes", bounds=POSITIVE),
        write=_mean(wide["write"].mean(axis=1), missing or "no tokens", bounds=POSITIVE),
        norm=_mean(wide["norm"].mean(axis=1), missing, bounds=POSITIVE),
        rank=_mean(wide["rank"].mean(axis=1), missing, bounds=POSITIVE),
        retained=_mean(
            wide["retained"].mean(axis=1), missing or "the needle is not read yet", bounds=POSITIVE
        ),
        readout=Estimate(None, "the question is not read yet")
        if best is None
        else _mean(wide["readout"][:, best], "", bounds=SHARE),
        readout_head=best,
    )


def _mean(values: np.ndarray, why: str, bounds: tuple[float, float] = (-inf, inf)) -> Estimate:
    """Mean over documents with Student's t interval; documents without a value are left out.

    Args:
        values: of the documents.
        why: the reason if fewer than two have a value.
        bounds: range of the values, which the interval respects.
    """
    values = values[np.isfinite(values)]
    if len(values) < LEAST:
        return Estimate(None, why or "fewer than two documents")
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    half = student_quantile(len(values) - 1, 0.975) * deviation / sqrt(len(values))
    return Estimate(Interval(mean, mean - half, mean + half, METHOD).clipped(*bounds))


def _half_life(log_decay: np.ndarray, why: str) -> Estimate:
    """Half-life ln 2 ÷ −(mean log decay) in tokens; its interval is that of the mean, transformed."""
    found = _mean(log_decay, why or "no tokens")
    if found.interval is None:
        return found
    rates = [-found.interval.high, -found.interval.point, -found.interval.low]
    if rates[1] <= 0:
        return Estimate(None, "the state does not decay")
    if rates[0] <= 0:
        return Estimate(None, "the decay is within its interval of none")
    ends: Sequence[float] = [log(2) / rate for rate in rates]
    return Estimate(Interval(ends[1], ends[2], ends[0], METHOD))


ABOUT = Markup(
    "What recurrent states hold of a needle in a haystack, by the definitions of <code>evalsuite "
    "probe</code>: the retained share is exact, as a state is linear in the values that were written."
)


@section("probe", "States while a needle is read", order=47)
def probe_section(report: Report) -> list[Block]:
    """One part per benchmark and length, the shortest first."""
    titles = {benchmark.name: benchmark.title for benchmark in report.benchmarks}
    places = sorted({(row.benchmark, row.context) for row in report.of(probes)})
    parts: list[Block] = []
    for benchmark, context in places:
        rows = [row for row in report.of(probes) if (row.benchmark, row.context) == (benchmark, context)]
        title = f"{titles.get(benchmark, benchmark)}, {formatting.tokens(context)} tokens"
        longest = max(length for name, length in places if name == benchmark)
        ranks = _all_ranks(report, rows) if context == longest else []
        figures = charts(_figures(report, rows) + ranks)
        parts.append(Part(title, [Texts(_summary(report, rows), title), *figures]))
    return [Text(ABOUT), *parts] if parts else []


def probes(report: Report) -> list[ProbeRow]:
    """Recurrent states while needles are read, per layer and segment."""
    return probe_rows(report.tensor, PROBE_FILE.read_all(report.runs))


def _label(report: Report, row: ProbeRow) -> str:
    return report.checkpoints[row.checkpoint].label


def _family(report: Report, row: ProbeRow) -> str:
    return lineage_of(report.checkpoints[row.checkpoint]).family


def _question(rows: Sequence[ProbeRow], kind: str = "all") -> list[ProbeRow]:
    return [row for row in rows if row.segment == "question" and row.kind == kind]


def _defined(estimates: Sequence[Estimate]) -> list[float]:
    return [each.interval.point for each in estimates if each.interval is not None]


def _summary(report: Report, rows: Sequence[ProbeRow]) -> Values:
    """One line per student: means over its recurrent layers, and the head that reads most of the needle."""
    lines = []
    question = _question(rows)
    for checkpoint in sorted({row.checkpoint for row in question}):
        mine = [row for row in question if row.checkpoint == checkpoint]
        recurrent = [row for row in mine if row.norm.interval is not None]
        after = [r for r in rows if (r.checkpoint, r.segment, r.kind) == (checkpoint, "after", "all")]
        longest = _defined([row.longest_half_life for row in after])
        best = max(mine, key=lambda row: row.readout.point or 0.0)
        decays = any(row.longest_half_life.interval is not None for row in after)
        lines.append(
            (
                _label(report, mine[0]),
                f"{mine[0].found} of {mine[0].documents}",
                formatting.estimate(mine[0].tokens_right),
                _percent(fmean(_defined([row.retained for row in recurrent]) or [0.0])),
                f"{max(longest):,.0f}" if longest else formatting.NOTHING if decays else "no decay",
                f"{fmean(_defined([row.rank for row in recurrent])):.1f}",
                _percent(best.readout.point or 0.0),
                f"layer {best.layer}, head {best.readout_head} ({best.mixer})",
            )
        )
    columns = (
        "model",
        "needles found",
        "answer tokens right %",
        "value retained %",
        "longest half-life, tokens",
        "effective rank",
        "best readout %",
        "by",
    )
    return Values(columns, tuple(lines))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _figures(report: Report, rows: Sequence[ProbeRow]) -> list[Figure]:
    question, answers = _question(rows), _question(rows, "answer")
    after = [row for row in rows if (row.segment, row.kind) == ("after", "all")]
    return [
        *_by_layer(
            report,
            question,
            lambda row: row.retained,
            factor=100,
            title="Needle's value in the state at the question",
            caption=(
                "Norm of what the state still holds of the value's writes, in percent of the norm right "
                "after the value; mean over heads and documents, 95 % intervals."
            ),
            axis=Axis("retained", suffix=" %", low=0),
        ),
        *_by_layer(
            report,
            question,
            lambda row: row.readout,
            factor=100,
            title="Readout of the needle's value",
            caption=(
                "Share of the absolute weights of the best head that goes to the value's tokens, where the "
                "answer is predicted; in softmax layers attention mass."
            ),
            axis=Axis("weight on the value", suffix=" %", low=0),
        ),
        *_by_layer(
            report,
            after,
            lambda row: row.longest_half_life,
            title="Longest half-life after the needle",
            caption=(
                "Tokens after which half of the state is left in the head and channel that decays least, by "
                "the decays of the text after the needle; layers without decay are absent."
            ),
            axis=Axis("half-life, tokens", is_log=True),
        ),
        *_by_answer(report, answers),
        *_by_depth(report, _question(rows, "depth")),
    ]


def _by_layer(
    report: Report,
    rows: Sequence[ProbeRow],
    of: Callable[[ProbeRow], Estimate],
    *,
    title: str,
    caption: str,
    axis: Axis,
    factor: float = 1,
) -> list[Figure]:
    """A curve per student over its layers; none if no layer has a value."""
    series = [
        Curve(
            _label(report, mine[0]),
            tuple(point for row in mine if (point := _point(row, of(row), factor))),
            _family(report, mine[0]),
        )
        for mine in _per_checkpoint(rows)
    ]
    # A student without points stays in the legend, so that colors are the same in every figure.
    if not any(curve.points for curve in series):
        return []
    return small_multiples(series, _layer_axis(rows), axis, title=title, caption=caption)


def _layer_axis(rows: Sequence[ProbeRow]) -> Axis:
    layers = sorted({row.layer for row in rows})
    return Axis("layer", ticks=tuple((layer, str(layer)) for layer in layers) if len(layers) <= 12 else ())


def _per_checkpoint(rows: Sequence[ProbeRow]) -> list[list[ProbeRow]]:
    return [
        [row for row in rows if row.checkpoint == checkpoint]
        for checkpoint in dict.fromkeys(row.checkpoint for row in rows)
    ]


def _point(row: ProbeRow, estimate: Estimate, factor: float) -> Point | None:
    if estimate.interval is None:
        return None
    found = estimate.interval.scaled(factor)
    head = f", head {row.readout_head}" if estimate is row.readout else ""
    label = f"layer {row.layer}{head}, {row.mixer}: {found.point:.4g} ({found.low:.4g} to {found.high:.4g})"
    return Point(row.layer, found.point, found.low, found.high, label)


def _by_answer(report: Report, rows: Sequence[ProbeRow]) -> list[Figure]:
    """Retained share where the needle was found and where not; none unless a student has both."""
    series = []
    for mine in _per_checkpoint(rows):
        if {row.group for row in mine} != {FOUND, MISSED}:
            continue
        for group in (FOUND, MISSED):
            members = [row for row in mine if row.group == group]
            points = [point for row in members if (point := _point(row, row.retained, 100))]
            name = f"{_label(report, mine[0])}, {group} ({members[0].documents})"
            series.append(Curve(name, tuple(points), _family(report, mine[0])))
    if not series:
        return []
    return small_multiples(
        series,
        _layer_axis(rows),
        Axis("retained", suffix=" %", low=0),
        title="Found and missed needles",
        caption="The same share where the whole answer is the model's most likely one, and where not.",
    )


def _by_depth(report: Report, rows: Sequence[ProbeRow]) -> list[Figure]:
    """Retained share by the needle's depth, mean over the recurrent layers."""
    groups = list(dict.fromkeys(row.group for row in rows))
    series = []
    for mine in _per_checkpoint(rows):
        points = []
        for place, group in enumerate(groups):
            shares = _defined([row.retained for row in mine if row.group == group])
            if shares:
                share = 100 * fmean(shares)
                points.append(Point(place, share, label=f"{_label(report, mine[0])}, {group}: {share:.4g} %"))
        if points:
            series.append(Curve(_label(report, mine[0]), tuple(points), _family(report, mine[0])))
    if not series or len(groups) < 2:
        return []
    return small_multiples(
        series,
        Axis("depth of the needle", ticks=tuple(enumerate(groups))),
        Axis("retained", suffix=" %", low=0),
        title="Needle's value at the question by depth",
        caption="Mean over the recurrent layers; 100 % is right before the question.",
    )


def _all_ranks(report: Report, rows: Sequence[ProbeRow]) -> list[Figure]:
    """One heatmap per student; shown for the longest length alone, as ranks hardly depend on it."""
    return [_ranks(report, mine) for mine in _per_checkpoint(rows)]


def _ranks(report: Report, rows: Sequence[ProbeRow]) -> Figure:
    """Effective rank of one student's states, layers × segments."""
    found = {(row.layer, row.segment): row for row in rows if row.kind == "all"}
    layers = sorted({layer for layer, _ in found})
    label = _label(report, rows[0])
    cells = [[found.get((layer, segment)) for segment in SEGMENTS] for layer in layers]
    texts = [[_rank(row) for row in line] for line in cells]
    names = [f"{layer} {found[layer, 'question'].mixer}" for layer in layers]
    return heatmap(
        SEGMENTS,
        names,
        [[None if row is None else row.rank.point for row in line] for line in cells],
        title=f"Effective rank of the states: {label}",
        caption="After each part of the document, mean over heads; softmax layers have no state.",
        texts=texts,
        hover=[[_spoken(row) for row in line] for line in cells],
        table=Values(
            ("layer", *(f"{name}: rank" for name in SEGMENTS), "write ÷ state", "norm"),
            tuple(
                (name, *line, _number(found[layer, "question"].write), _number(found[layer, "question"].norm))
                for name, layer, line in zip(names, layers, texts, strict=True)
            ),
        ),
    )


def _rank(row: ProbeRow | None) -> str:
    return formatting.NOTHING if row is None or row.rank.point is None else f"{row.rank.point:.1f}"


def _number(estimate: Estimate) -> str:
    return formatting.NOTHING if estimate.point is None else f"{estimate.point:.3g}"


def _spoken(row: ProbeRow | None) -> str:
    if row is None or row.rank.interval is None:
        return ""
    found = row.rank.interval
    return (
        f"layer {row.layer}, {row.segment}: rank {found.point:.2f} ({found.low:.2f} to {found.high:.2f}), "
        f"norm {_number(row.norm)}, write ÷ state {_number(row.write)}"
    )


ESTIMATES = (
    *("tokens_right", "half_life", "longest_half_life", "beta", "write", "norm", "rank"),
    *("retained", "readout"),
)
PROBES: Table[ProbeRow] = Table(
    name="probes",
    title="States while a needle is read",
    rows=lambda report: report.of(probes),
    columns=(
        label_column(),
        weights_column(),
        Column("benchmark", unit="text"),
        Column("context"),
        Column("kind", unit="text"),
        Column("group", unit="text"),
        Column("documents"),
        Column("found"),
        Column("layer"),
        Column("mixer", unit="text"),
        Column("segment", unit="text"),
        *(Column(name, kind="estimate") for name in ESTIMATES),
        Column("readout_head"),
    ),
)
MEASURES.add("probes", Measure(tables=(PROBES,)))

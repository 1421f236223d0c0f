"""Tables of the papers with this report's checkpoints in the same columns, and scores printed elsewhere."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.blocks import Texts, chip
from evalsuite.reports.figures.figure import Values
from evalsuite.reports.references.papers import (
    BENCHMARKS,
    MEANS,
    TABLE_MEANS,
    PaperScore,
    macro_gap,
    macro_recovery,
    paper_scores,
)
from evalsuite.reports.report import Report
from evalsuite.reports.table import csv_text

FRACTION = "score (0-1)"
"""Metric of scores that are printed as fractions, not percentages."""
GAP = ("gendistill_2026", "Table 1")
"""Source of the protocol gap."""
RECOVERY = "RECOV."
"""Of `TABLE_MEANS`, the percentage of the teacher's mean; the others are means."""
DROPS = ("drop, log-likelihood", "drop, generation", "gap")
"""Last columns of a table with both protocols: points, over the benchmarks that it has under both."""

Place = tuple[str, str, int | None]
"""Protocol, the paper's name of a benchmark, context: a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLine:
    """One model of a table."""

    model: str
    origin: str
    """`ours`, of this report, or `printed`."""
    role: str
    scores: Mapping[Place, float]
    """In the unit of the table."""
    teacher: str = ""
    """Of a student, the model of the line that it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A table in the layout of its paper, our checkpoints first."""

    name: str
    """Of its file, such as `gendistill_2026_table_1`."""
    citation: str
    figures: Mapping[Place, PaperScore]
    """A printed score of each column, which tells its unit."""
    lines: tuple[PaperLine, ...]
    means: Mapping[str, str]
    """Columns that summarize the others, over those of them that are there: header → name in the paper."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols of its columns."""
        return tuple(name for name in PROTOCOLS if any(protocol == name for protocol, _, _ in self.figures))

    @property
    def label(self) -> str:
        """Paper, table and protocol."""
        titles = [formatting.PROTOCOL_TITLES[name] for name in self.protocols]
        return f"{self.citation}, {' and '.join(titles)}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Headers of the scores, of what summarizes them, and of the drops if there are both protocols."""
        both = len(self.protocols) > 1
        names = [
            name
            + (f" {formatting.tokens(context)}" if context else "")
            + (f", {formatting.PROTOCOL_TITLES[protocol]}" if both else "")
            for protocol, name, context in self.figures
        ]
        return (*names, *self.means, *(DROPS if both else ()))

    def values(self, line: PaperLine) -> list[float | None]:
        """The values of `columns`; None where a score is missing."""
        scores = [line.scores.get(place) for place in self.figures]
        means = [self._mean(line, name) for name in self.means.values()]
        return [*scores, *means, *(self._drops(line) if len(self.protocols) > 1 else ())]

    def _mean(self, line: PaperLine, name: str) -> float | None:
        """A line's mean, or the percentage of its teacher's that it is; None where a score is missing."""
        compared = self._teacher(line) if name == RECOVERY and line.role != "teacher" else line
        if compared is None or any(self.figures.keys() - each.scores for each in (line, compared)):
            return None
        own, other = (list(each.scores.values()) for each in (line, compared))
        if name != RECOVERY:
            return sum(own) / len(own)
        found = macro_recovery(own, other)
        return None if found is None else 100 * found

    def _teacher(self, line: PaperLine) -> PaperLine | None:
        """The line that a student is compared with."""
        teachers = [each for each in self.lines if (each.origin, each.model) == (line.origin, line.teacher)]
        return teachers[0] if teachers else None

    def _drops(self, line: PaperLine) -> Sequence[float | None]:
        """Drops under both protocols and their gap; None for a teacher, or where a score is missing."""
        teacher = self._teacher(line)
        first, second = (
            {(name, context) for protocol, name, context in self.figures if protocol == each}
            for each in PROTOCOLS
        )
        shared = sorted(first & second, key=str)
        needed = {(protocol, *key) for protocol in PROTOCOLS for key in shared}
        if not shared or teacher is None or any(needed - set(each.scores) for each in (line, teacher)):
            return [None] * len(DROPS)

        def of(each: PaperLine) -> tuple[list[float], list[float]]:
            first, second = ([each.scores[protocol, *key] for key in shared] for protocol in PROTOCOLS)
            return first, second

        return macro_gap(of(line), of(teacher))

    def cells(self, line: PaperLine) -> list[str]:
        """The values as text: printed scores as they are, ours with as many digits."""
        figures = [*self.figures.values(), *[None] * (len(self.means) + len(DROPS))]
        return [
            _text(value, figure, line.origin)
            for value, figure in zip(self.values(line), figures, strict=False)
        ]

    @property
    def texts(self) -> Texts:
        """The table of the page; chips mark our lines and teachers."""
        rows = tuple((_named(line), *self.cells(line)) for line in self.lines)
        return Texts(Values(("model", *self.columns), rows), self.label)

    def csv(self) -> str:
        """The table as CSV, unrounded."""
        return csv_text(
            {"model": line.model, "origin": line.origin, "role": line.role}
            | dict(zip(self.columns, self.values(line), strict=True))
            for line in self.lines
        )


def printed_scores(report: Report) -> tuple[PaperScore, ...]:
    """Scores that the user has from elsewhere; a comparison sets them."""
    return ()


def paper_tables(report: Report) -> list[PaperTable]:
    """All tables that share a benchmark and a protocol with the report, the user's own first."""
    found: dict[tuple[str, str], list[PaperScore]] = {}
    for figure in (*report.of(printed_scores), *paper_scores()):
        found.setdefault((figure.source, figure.table), []).append(figure)
    shared = {key: [each for each in all_ if _is_in_report(report, each)] for key, all_ in found.items()}
    return [_table(report, figures, found[key]) for key, figures in shared.items() if figures]


def _names(benchmark: str) -> tuple[str, ...]:
    """Our benchmarks, any of which a printed name is."""
    return BENCHMARKS.get(benchmark, (benchmark,))


def _is_in_report(report: Report, figure: PaperScore) -> bool:
    with_protocol = {row.name for row in report.benchmarks if figure.protocol in row.protocols}
    if figure.benchmark in MEANS:
        return with_protocol.issuperset(MEANS[figure.benchmark])
    for row in report.benchmarks:
        if row.name in _names(figure.benchmark) and row.name in with_protocol:
            return figure.context is None or figure.context in row.contexts
    return False


def shipped_names() -> set[str]:
    """Names of all tables of papers, whether the report has them or not."""
    return {table_name(figure) for figure in paper_scores()}


def table_name(figure: PaperScore) -> str:
    """Name of a printed score's table, as that of its file."""
    return "_".join(re.findall(r"[a-z0-9]+", f"{figure.source} {figure.table}".lower()))


def _table(report: Report, figures: Sequence[PaperScore], printed: Sequence[PaperScore]) -> PaperTable:
    """The table of the figures of a printed one whose benchmarks the report has."""
    ordered = sorted(figures, key=lambda figure: PROTOCOLS.index(figure.protocol))
    columns: dict[Place, PaperScore] = {}
    for figure in ordered:
        columns.setdefault(_place(figure), figure)
    lines: dict[tuple[str, str, str], list[PaperScore]] = {}
    for figure in figures:
        lines.setdefault((figure.model, figure.scale, figure.role), []).append(figure)
    theirs = [
        PaperLine(
            model=_title(figure),
            origin="printed",
            role=figure.role,
            scores={_place(each): each.value for each in found},
            teacher=_teacher(figure, figures),
        )
        for found in lines.values()
        for figure in found[:1]
    ]
    first = figures[0]
    return PaperTable(
        name=table_name(first),
        citation=first.citation,
        figures=columns,
        lines=(*_ours(report, columns), *theirs),
        means=_means(columns, printed),
    )


def _means(columns: Mapping[Place, PaperScore], printed: Sequence[PaperScore]) -> Mapping[str, str]:
    """`PaperTable.means`, which papers print for columns of one unit and one protocol."""
    every = {_place(each) for each in printed if each.benchmark not in TABLE_MEANS}
    part = "" if len(columns) == len(every) else f" of these {len(columns)}"
    names = [each.benchmark for each in printed if each.benchmark in TABLE_MEANS]
    return {f"{name}{part}": name for name in names} if len(columns) > 1 else {}


def _place(figure: PaperScore) -> Place:
    return figure.protocol, figure.benchmark, figure.context


def _title(figure: PaperScore) -> str:
    has_scale = figure.scale and figure.scale not in figure.model
    return f"{figure.model}, {figure.scale}" if has_scale else figure.model


def _teacher(figure: PaperScore, figures: Sequence[PaperScore]) -> str:
    """The line of a student's teacher: the one that it names, or else the only one of its table."""
    if figure.role == "teacher":
        return ""
    teachers = {_title(each): each for each in figures if each.role == "teacher"}
    named = [title for title, each in teachers.items() if each.model == figure.teacher]
    found = named or list(teachers)
    return found[0] if len(found) == 1 else ""


def _named(line: PaperLine) -> str:
    marks = [name for name in (line.origin, line.role) if name in ("ours", "teacher")]
    return chip(line.model, *([", ".join(marks)] if marks else []))


def _ours(report: Report, columns: Mapping[Place, PaperScore]) -> list[PaperLine]:
    """The report's checkpoints in the columns of a table; those without any score are left out."""
    lines = []
    for i, checkpoint in enumerate(report.checkpoints):
        scores = {
            place: score
            for place, figure in columns.items()
            if (score := _our_score(report, i, figure)) is not None
        }
        if scores:
            teacher = None if checkpoint.teacher is None else report.checkpoints[checkpoint.teacher].label
            lines.append(
                PaperLine(
                    model=checkpoint.label,
                    origin="ours",
                    role=checkpoint.role,
                    scores=scores,
                    teacher=teacher or "",
                )
            )
    return lines


def _our_score(report: Report, checkpoint: int, figure: PaperScore) -> float | None:
    """A checkpoint's score in the column and unit of a printed one; None if a part is not measured.

    Averaged over benchmarks, and over contexts where the paper states none; a perplexity per unit.
    """
    plans = {each.name: each for each in report.benchmarks if figure.protocol in each.protocols}
    names = MEANS.get(figure.benchmark) or [n for n in _names(figure.benchmark) if n in plans][:1]
    means = []
    for name in names:
        how = plans[name].protocols[figure.protocol]  # type: ignore[index]  # the keys are these texts
        contexts = how.contexts if figure.context is None else (figure.context,)
        scores = {
            row.context: row.score.point
            for row in report.scores
            if (row.checkpoint, row.benchmark, row.protocol) == (checkpoint, name, figure.protocol)
        }
        if not scores.keys() >= set(contexts):
            return None
        mean = sum(scores[context] for context in contexts) / len(contexts)
        means.append(math.exp(mean) if how.direction == "lower" else mean)
    is_percent = figure.metric not in ("perplexity", FRACTION)
    return (100 if is_percent else 1) * sum(means) / len(means)


def _text(value: float | None, figure: PaperScore | None, origin: str) -> str:
    """A score in the digits of its column, or without a column a number of points."""
    if value is None:
        return formatting.NOTHING
    if figure is None:
        return formatting.plain(value, 1)
    if origin == "printed":
        return f"{value:g}"
    if figure.metric == "perplexity":
        return f"{value:.4g}"
    return f"{value:.4f}" if figure.metric == FRACTION else formatting.plain(value, 1)


def paper_gap_sentence(report: Report) -> str:
    """The protocol gap of arXiv 2603.26556; empty without one of its benchmarks under both protocols."""
    figures = [f for f in paper_scores() if (f.source, f.table) == GAP]
    under_loglikelihood = [
        f.benchmark for f in figures if f.role == "student" and f.protocol == "loglikelihood"
    ]
    names = [
        name
        for name in under_loglikelihood
        if name in {f.benchmark for f in figures if f.protocol == "generation"}
    ]
    both = {row.benchmark for row in report.gaps}
    if not any(ours in both for name in names for ours in BENCHMARKS.get(name, ())):
        return ""
    scores = {(f.role, f.protocol, f.benchmark): f.value for f in figures}

    def of(role: str) -> tuple[list[float], list[float]]:
        return (
            [scores[role, "loglikelihood", name] for name in names],
            [scores[role, "generation", name] for name in names],
        )

    loglikelihood, generation, gap = macro_gap(of("student"), of("teacher"))
    student = next(f.model for f in figures if f.role == "student")
    return (
        f"For comparison, {student} drops {loglikelihood:.1f} points under log-likelihood and "
        f"{generation:.1f} under generation on {', '.join(names[:-1])} and {names[-1]}, a gap of {gap:.1f} "
        f"({figures[0].citation})."
    )

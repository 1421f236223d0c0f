"""What the papers print for benchmarks that this report has too, table by table."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.reports import words
from evalsuite.reports.references import BENCHMARKS, Published, macro_gap, published
from evalsuite.reports.report import Report

GAP = ("gendistill_2026", "Table 1")
"""Where the protocol gap is printed."""


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """One table of a paper, cut to the benchmarks (and contexts) of this report."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Model, its role, figures as printed."""


def printed_tables(report: Report) -> list[PrintedTable]:
    """Every shipped table that has a benchmark of this report under a protocol that the report asked."""
    found: dict[tuple[str, str], list[Published]] = {}
    for figure in published():
        if _is_ours(report, figure):
            found.setdefault((figure.citation, figure.protocol), []).append(figure)
    return [_table(citation, protocol, figures) for (citation, protocol), figures in found.items()]


def _is_ours(report: Report, figure: Published) -> bool:
    names = BENCHMARKS.get(figure.benchmark, ())
    for row in report.benchmarks:
        if row.name in names and figure.protocol in row.protocols:
            return figure.context is None or figure.context in row.contexts
    return False


def _table(citation: str, protocol: str, figures: Sequence[Published]) -> PrintedTable:
    columns = dict.fromkeys((figure.benchmark, figure.context) for figure in figures)
    models = dict.fromkeys((figure.model, figure.scale, figure.role) for figure in figures)
    values = {(f.model, f.scale, f.benchmark, f.context): f"{f.value:g}" for f in figures}
    return PrintedTable(
        title=f"{citation}, {words.PROTOCOL_WORDS[protocol]}",
        columns=tuple(name + (f" {words.tokens(at)}" if at else "") for name, at in columns),
        rows=tuple(
            (
                f"{model}, {scale}" if scale and scale not in model else model,
                role,
                tuple(values.get((model, scale, *column), words.NOTHING) for column in columns),
            )
            for model, scale, role in models
        ),
    )


def published_gap_sentence(report: Report) -> str:
    """The gap that arXiv 2603.26556 prints; empty where no benchmark of it was asked both ways here."""
    figures = [f for f in published() if (f.source, f.table) == GAP]
    ranked = [f.benchmark for f in figures if f.role == "student" and f.protocol == "loglikelihood"]
    names = [name for name in ranked if name in {f.benchmark for f in figures if f.protocol == "generation"}]
    both = {row.benchmark for row in report.gaps}
    if not any(ours in both for name in names for ours in BENCHMARKS.get(name, ())):
        return ""
    scores = {(f.role, f.protocol, f.benchmark): f.value for f in figures}

    def of(role: str) -> tuple[list[float], list[float]]:
        return (
            [scores[role, "loglikelihood", name] for name in names],
            [scores[role, "generation", name] for name in names],
        )

    lost, written, gap = macro_gap(of("student"), of("teacher"))
    student = next(f.model for f in figures if f.role == "student")
    return (
        f"For comparison, {student} lost {lost:.1f} points when ranked and {written:.1f} when written on "
        f"{', '.join(names[:-1])} and {names[-1]}, a gap of {gap:.1f} ({figures[0].citation})."
    )

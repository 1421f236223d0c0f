"""Scores that the papers print for benchmarks of this report, by table, with ours in the same columns."""

import math
from collections.abc import Sequence

from evalsuite.reports import formatting
from evalsuite.reports.blocks import Texts, chip
from evalsuite.reports.figures.figure import Values
from evalsuite.reports.references.papers import BENCHMARKS, MEANS, PaperScore, macro_gap, paper_scores
from evalsuite.reports.report import Report

GAP = ("gendistill_2026", "Table 1")
"""Source of the protocol gap."""


def paper_tables(report: Report) -> list[Texts]:
    """All shipped tables that share a benchmark and a protocol with the report."""
    found: dict[tuple[str, str], list[PaperScore]] = {}
    for figure in paper_scores():
        if _is_in_report(report, figure):
            found.setdefault((figure.citation, figure.protocol), []).append(figure)
    return [_table(report, citation, protocol, figures) for (citation, protocol), figures in found.items()]


def _is_in_report(report: Report, figure: PaperScore) -> bool:
    with_protocol = {row.name for row in report.benchmarks if figure.protocol in row.protocols}
    if figure.benchmark in MEANS:
        return with_protocol.issuperset(MEANS[figure.benchmark])
    names = BENCHMARKS.get(figure.benchmark, ())
    for row in report.benchmarks:
        if row.name in names and row.name in with_protocol:
            return figure.context is None or figure.context in row.contexts
    return False


def _table(report: Report, citation: str, protocol: str, figures: Sequence[PaperScore]) -> Texts:
    columns = dict.fromkeys((figure.benchmark, figure.context) for figure in figures)
    models = dict.fromkeys((figure.model, figure.scale, figure.role) for figure in figures)
    values = {(f.model, f.scale, f.benchmark, f.context): f"{f.value:g}" for f in figures}
    names = (name + (f" {formatting.tokens(at)}" if at else "") for name, at in columns)
    printed = [
        (
            chip(f"{model}, {scale}" if scale and scale not in model else model, *_role(role)),
            *(values.get((model, scale, *column), formatting.NOTHING) for column in columns),
        )
        for model, scale, role in models
    ]
    ours = _ours(report, protocol, list({(f.benchmark, f.context): f for f in figures}.values()))
    title = f"{citation}, {formatting.PROTOCOL_TITLES[protocol]}"
    return Texts(Values(("model", *names), (*ours, *printed)), title)


def _role(role: str) -> tuple[str, ...]:
    return ("teacher",) if role == "teacher" else ()


def _ours(report: Report, protocol: str, columns: Sequence[PaperScore]) -> list[tuple[str, ...]]:
    """The report's checkpoints in the columns of a table; those without any score are left out.

    Args:
        report: the report.
        protocol: of the table.
        columns: one printed score per column, which tells its unit.
    """
    rows = []
    for i, checkpoint in enumerate(report.checkpoints):
        scores = [_our_score(report, i, protocol, figure) for figure in columns]
        if any(score is not None for score in scores):
            texts = (
                formatting.NOTHING if score is None else _as_printed(score, figure)
                for score, figure in zip(scores, columns, strict=True)
            )
            mark = ", ".join(("ours", *_role(checkpoint.plan.role)))
            rows.append((chip(checkpoint.label, mark), *texts))
    return rows


def _our_score(report: Report, checkpoint: int, protocol: str, figure: PaperScore) -> float | None:
    """A checkpoint's score in the column of a printed one; None if a part of it is not measured.

    Averaged over benchmarks, and over contexts where the paper states none; a perplexity per unit.
    """
    plans = {each.name: each for each in report.benchmarks if protocol in each.protocols}
    names = MEANS.get(figure.benchmark) or [n for n in BENCHMARKS[figure.benchmark] if n in plans][:1]
    means = []
    for name in names:
        how = plans[name].protocols[protocol]  # type: ignore[index]  # the keys are these texts
        contexts = how.contexts if figure.context is None else (figure.context,)
        scores = {
            row.context: row.score.point
            for row in report.scores
            if (row.checkpoint, row.benchmark, row.protocol) == (checkpoint, name, protocol)
        }
        if not scores.keys() >= set(contexts):
            return None
        mean = sum(scores[context] for context in contexts) / len(contexts)
        means.append(math.exp(mean) if how.direction == "lower" else mean)
    return sum(means) / len(means)


def _as_printed(score: float, figure: PaperScore) -> str:
    """A score in the unit of a printed one: percent, a fraction, or a perplexity."""
    if figure.metric == "perplexity":
        return f"{score:.4g}"
    return f"{score:.4f}" if figure.metric == "score (0-1)" else formatting.percent(score)


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

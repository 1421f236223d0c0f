"""report.md: the report in the width of a pull request."""

import re

from evalsuite.reports import words
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.report import Report


def report_markdown(report: Report) -> str:
    """The headline, recovery, gap and needles as GitHub tables, then the warnings."""
    parts = [f"## {escape(words.headline(report))}", _about(report)]
    for teacher in report.teachers:
        parts += _recovery(report, teacher)
    parts += _gap(report)
    parts += _needles(report)
    if report.warnings:
        parts.append(
            "### Before you quote a number\n\n" + "\n".join(f"- {escape(w)}" for w in report.warnings)
        )
    parts.append("<sub>Recovery: student ÷ teacher, ratio of macro averages. Intervals: 95 %.</sub>")
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Text that Markdown and the HTML in it show as it is."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns after the first are right-aligned. Cells are written as given."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _about(report: Report) -> str:
    documents = sum(len(cell.documents) for cell in report.panel.cells)
    names = ", ".join(escape(report.subjects[i].label) for i in report.teachers) or "none"
    return (
        f"Teacher: {names} · students: {len(report.students())} · benchmarks: {len(report.benchmarks)} · "
        f"questions: {words.count(documents)} · records: {words.count(report.panel.records)}"
    )


def _recovery(report: Report, teacher: int) -> list[str]:
    students = report.students(teacher)
    rows = [r for r in report.averages if r.subject in students and r.scope == ALL]
    main = report.protocols[0]
    lines = []
    for row in order([r for r in rows if r.protocol == main]):
        cells = [words.rank(row) or words.NOTHING, f"**{escape(report.subjects[row.subject].label)}**"]
        for protocol in report.protocols:
            average = report.average(row.subject, protocol)
            cells.append(words.estimate(average.recovery) if average else words.NOTHING)
        cells.append(words.percent(row.centred.point))
        gap = report.gap(row.subject)
        cells.append(f"{words.signed(100 * gap.gap.point)} ({words.span(gap.gap)})" if gap else words.NOTHING)
        lines.append(cells)
    if not lines:
        return []
    header = ["rank", "model"]
    header += [f"recovery %, {words.PROTOCOL_WORDS[protocol]}" for protocol in report.protocols]
    header += ["above chance %", "gap, points"]
    return [f"### Recovery of {escape(report.subjects[teacher].label)}\n\n" + table(header, lines)]


def _gap(report: Report) -> list[str]:
    rows = [row for row in report.gaps if row.benchmark == ALL]
    if not rows:
        return []
    lines = []
    for row in rows:
        explained = row.explained.get("any")
        lines.append(
            [
                f"**{escape(report.subjects[row.subject].label)}**",
                words.signed(-100 * row.deficit_ranked.point),
                words.signed(-100 * row.deficit_written.point),
                f"{words.signed(100 * row.gap.point)} ({words.span(row.gap)})",
                words.NOTHING if explained is None else words.signed(100 * explained),
            ]
        )
    header = ["model", "ranked, points", "written, points", "gap", "of it: no answer, cut off, looped"]
    text = "### Ranked or written, on the same documents\n\n" + table(header, lines)
    if report.agreement is not None and report.agreement.pairs:
        agreement = report.agreement
        tau = "" if agreement.tau is None else f" (Kendall τ {agreement.tau:.2f})"
        text += (
            f"\n\n{len(agreement.inversions)} of {agreement.pairs} pairs of students change order between "
            f"the protocols{tau}."
        )
    return [text]


def _needles(report: Report) -> list[str]:
    parts = []
    for benchmark in report.benchmarks:
        if not benchmark.contexts:
            continue
        for protocol in benchmark.protocols:
            rows = [r for r in report.scores if r.benchmark == benchmark.name and r.protocol == protocol]
            contexts = sorted({row.context for row in rows if row.context is not None})
            if not contexts:
                continue
            found = {(row.subject, row.context): words.percent(row.score.point, 0) for row in rows}
            lines = [
                [
                    escape(subject.label),
                    *(found.get((i, context), words.NOTHING) for context in contexts),
                ]
                for i, subject in enumerate(report.subjects)
            ]
            title = f"{escape(benchmark.title)}, {words.PROTOCOL_WORDS[protocol]}, % found"
            parts.append(table([title, *(words.tokens(context) for context in contexts)], lines))
    return ["### Needles by context\n\n" + "\n\n".join(parts)] if parts else []

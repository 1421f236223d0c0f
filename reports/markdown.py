"""report.md: the report in the width of a pull request."""

import re

from evalsuite.reports import words
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.findings import (
    answered_all,
    order_sentences,
    repeat_sentences,
    replicate_sentences,
    variation_sentence,
)
from evalsuite.reports.records import PROTOCOLS
from evalsuite.reports.report import Report


def report_markdown(report: Report) -> str:
    """The headline, recovery, gap and needles as GitHub tables, then the warnings."""
    parts = [f"## {escape(words.headline(report))}", _about(report)]
    for teacher in report.teachers:
        parts += _recovery(report, teacher)
    parts += _published(report)
    parts += _gap(report)
    parts += _needles(report)
    parts += _variants(report)
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
    lines: list[list[str]] = []
    notes: list[str] = []
    for row in order([r for r in rows if r.protocol == main]):
        cells = [words.rank(row) or words.NOTHING, f"**{escape(report.subjects[row.subject].label)}**"]
        for protocol in report.protocols:
            average = report.average(row.subject, protocol)
            part = r"\*" if average and average.missing else ""
            cells.append(words.estimate(average.recovery) + part if average else words.NOTHING)
            if part and not notes:
                notes.append(r"\* Over the part of the benchmarks that it answered; not ranked.")
        cells.append(words.percent(row.centred.point))
        gap = report.gap(row.subject)
        cells.append(f"{words.signed(100 * gap.gap.point)} ({words.span(gap.gap)})" if gap else words.NOTHING)
        lines.append(cells)
    if not lines:
        return []
    header = ["rank", "model"]
    header += [f"recovery %, {words.PROTOCOL_WORDS[protocol]}" for protocol in report.protocols]
    header += ["above chance %", "gap, points"]
    seeds = [escape(text) for protocol in report.protocols for text in replicate_sentences(report, protocol)]
    title = f"### Recovery of {escape(report.subjects[teacher].label)}"
    return ["\n\n".join([title, table(header, lines), *notes, *seeds])]


def _published(report: Report) -> list[str]:
    if not report.published:
        return []
    lines = [
        [
            f"**{escape(report.subjects[row.subject].label)}**",
            words.estimate(row.ours),
            words.percent(row.theirs),
            words.estimate(row.centred),
            words.percent(row.theirs_centred),
        ]
        for row in sorted(report.published, key=lambda row: -(row.ours.point or 0.0))
    ]
    names = list(dict.fromkeys(name for row in report.published for name in row.benchmarks))
    header = ["model", "ours %", "published %", "ours above chance %", "published above chance %"]
    title = f"### On {', '.join(names)}, beside {escape(report.published[0].citation)}"
    found = [escape(text) for order in report.orders for text in order_sentences(report, order)]
    return ["\n\n".join([title, table(header, lines), *found])]


def _variants(report: Report) -> list[str]:
    parts = []
    for variation in report.variations:
        lines = []
        for member in variation.members:
            cells = [f"**{escape(report.subjects[member.subject].label)}**"]
            partner = words.NOTHING if member.partner is None else report.subjects[member.partner].label
            cells.append(escape(partner))
            for protocol in PROTOCOLS:
                average = report.average(member.subject, protocol)
                whole = average is not None and answered_all(report, variation, average)
                cells.append(words.estimate(average.recovery) if average and whole else words.NOTHING)
                difference = member.differences.get(protocol)
                cells.append(
                    words.NOTHING
                    if difference is None
                    else f"{words.signed(100 * difference.point)} ({words.span(difference)})"
                )
            lines.append(cells)
        header = ["model", "beside", "recovery %, ranked", "points", "recovery %, written", "points"]
        text = escape(variation_sentence(report, variation))
        title = f"#### {escape(variation.base)}"
        further = [escape(said) for said in repeat_sentences(report, variation)]
        parts.append("\n\n".join([title, table(header, lines), text, *further]))
    return ["### One thing changed\n\n" + "\n\n".join(parts)] if parts else []


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
        tau = "" if agreement.tau is None else f" (Kendall τ {words.plain(agreement.tau, 2)})"
        text += (
            f"\n\n{len(agreement.inversions)} of {agreement.pairs} pairs of students change order between "
            f"the protocols{tau}; {sum(i.proven for i in agreement.inversions)} of the changes are proven."
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

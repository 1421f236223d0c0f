"""The leaderboard as lines of text, for a terminal."""

from evalsuite.reports import words
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.report import Report


def leaderboard_text(report: Report) -> str:
    """Headline, one table per teacher, needles, and the warnings."""
    parts = [words.headline(report)]
    parts += [_recovery(report, teacher) for teacher in report.teachers]
    parts += [_table(report, None, protocol) for protocol in report.protocols]
    parts.append(_needles(report))
    if report.warnings:
        parts.append("\n".join(f"! {warning}" for warning in report.warnings))
    return "\n\n".join(part for part in parts if part)


def columns(rows: list[list[str]]) -> str:
    """Rows of text under each other; the first two columns to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _recovery(report: Report, teacher: int) -> str:
    tables = [_table(report, teacher, protocol) for protocol in report.protocols]
    gaps = [r for r in report.gaps if r.benchmark == ALL and r.subject in report.students(teacher)]
    if gaps:
        lines = [["", "gap", "points", "95 % interval", "ranked", "written"]]
        for row in sorted(gaps, key=lambda row: row.gap.point):
            label = report.subjects[row.subject].label
            ranked, written = (
                words.signed(-100 * deficit.point) for deficit in (row.deficit_ranked, row.deficit_written)
            )
            gap = words.signed(100 * row.gap.point)
            lines.append(["", label, gap, words.span(row.gap), ranked, written])
        tables.append(columns(lines))
    return "\n\n".join(table for table in tables if table)


def _table(report: Report, teacher: int | None, protocol: str) -> str:
    """A teacher with its students; for None, the checkpoints that have no teacher."""
    if teacher is None:
        members = [i for i, s in enumerate(report.subjects) if s.teacher is None and not s.is_teacher]
    else:
        members = list(report.students(teacher))
    scores: dict[tuple[int, str], list[float]] = {}
    for row in report.scores:
        if row.protocol == protocol:
            scores.setdefault((row.subject, row.benchmark), []).append(row.score.point)
    members = [i for i in members if any(subject == i for subject, _ in scores)]
    if not members and teacher is None:
        return ""
    answered = {name for _, name in scores}
    benchmarks = [benchmark for benchmark in report.benchmarks if benchmark.name in answered]

    def cells(subject: int) -> list[str]:
        return [
            _score(scores.get((subject, b.name)), b.protocols[protocol].direction)  # type: ignore[index]
            for b in benchmarks
        ]

    title = "no teacher" if teacher is None else report.subjects[teacher].label
    header = ["", title, "recovery %", "95 % interval", "above chance"]
    lines = [[*header, *(benchmark.title for benchmark in benchmarks)]]
    if teacher is not None:
        lines.append(["", "teacher", "", "", "", *cells(teacher)])
    averages = {r.subject: r for r in report.averages if (r.protocol, r.scope) == (protocol, ALL)}
    ranked = [r.subject for r in order([averages[i] for i in members if i in averages])]
    for i in [*ranked, *(i for i in members if i not in averages)]:
        average = averages.get(i)
        interval = average.recovery.interval if average else None
        lines.append(
            [
                words.rank(average) if average else "",
                report.subjects[i].label,
                words.percent(interval.point if interval else None),
                words.span(interval) if interval else "undefined" if average else "",
                words.percent(average.centred.point if average else None),
                *cells(i),
            ]
        )
    return f"answers {words.PROTOCOL_WORDS[protocol]}\n{columns(lines)}"


def _score(values: list[float] | None, direction: str) -> str:
    if not values:
        return words.NOTHING
    mean = sum(values) / len(values)
    return words.percent(mean) if direction == "higher" else f"{mean:.3f}"


def _needles(report: Report) -> str:
    tables = []
    for benchmark in report.benchmarks:
        rows = [r for r in report.scores if r.benchmark == benchmark.name and r.context is not None]
        for protocol in dict.fromkeys(row.protocol for row in rows):
            found = {(r.subject, r.context): r.score.point for r in rows if r.protocol == protocol}
            contexts = sorted({context for _, context in found if context is not None})
            title = f"{benchmark.title}, {words.PROTOCOL_WORDS[protocol]}"
            lines = [["", title, *(words.tokens(context) for context in contexts)]]
            for i, subject in enumerate(report.subjects):
                cells = [words.percent(found.get((i, context)), 0) for context in contexts]
                lines.append(["", subject.label, *cells])
            tables.append(columns(lines))
    return "\n\n".join(tables)

"""The leaderboard as plain text for a terminal."""

from evalsuite.reports import formatting
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.headline import headline
from evalsuite.reports.measures.gap import GAP
from evalsuite.reports.measures.leaderboard import Entry, columns_of
from evalsuite.reports.measures.recall import context_views
from evalsuite.reports.report import Report
from evalsuite.reports.table import aligned


def leaderboard_text(report: Report) -> str:
    """Render headline, one table per teacher, scores by context and the warnings."""
    parts = [headline(report)]
    parts += [_recovery(report, teacher) for teacher in report.teachers]
    parts += [_table(report, None, protocol) for protocol in report.protocols]
    parts.append(_by_context(report))
    if report.warnings:
        parts.append("\n".join(f"! {warning}" for warning in report.warnings))
    return "\n\n".join(part for part in parts if part)


def _recovery(report: Report, teacher: int) -> str:
    tables = [_table(report, teacher, protocol) for protocol in report.protocols]
    gaps = [r for r in report.gaps if r.benchmark == ALL and r.checkpoint in report.students(teacher)]
    if gaps:
        in_order = sorted(gaps, key=lambda row: row.gap.point)
        tables.append(GAP.of(in_order).terminal(report))
    return "\n\n".join(table for table in tables if table)


def _table(report: Report, teacher: int | None, protocol: str) -> str:
    """A teacher with its students; for None, the checkpoints without a teacher."""
    if teacher is None:
        members = [i for i, s in enumerate(report.checkpoints) if s.teacher is None and not s.is_teacher]
    else:
        members = list(report.students(teacher))
    scores: dict[tuple[int, str], list[float]] = {}
    for row in report.scores:
        if row.protocol == protocol:
            scores.setdefault((row.checkpoint, row.benchmark), []).append(row.score.point)
    measured = {checkpoint for checkpoint, _ in scores}
    measured |= {c.checkpoint for c in report.tensor.incomplete if c.protocol == protocol and c.documents}
    members = [i for i in members if i in measured]
    if not members and teacher is None:
        return ""
    started = report.started(protocol)
    benchmarks = [benchmark for benchmark in report.benchmarks if benchmark.name in started]

    def cells(checkpoint: int) -> list[str]:
        return [
            formatting.coverage(*incomplete)
            if (incomplete := report.incomplete(checkpoint, b.name, protocol))
            else _score(scores.get((checkpoint, b.name)), b.protocols[protocol].direction)  # type: ignore[index]
            for b in benchmarks
        ]

    title = "no teacher" if teacher is None else report.checkpoints[teacher].label
    shown = columns_of(report, "terminal")
    header = ["", title, *(column.header for column in shown.values())]
    lines = [[*header, *(benchmark.title for benchmark in benchmarks)]]
    if teacher is not None:
        lines.append(["", "teacher", *("" for _ in shown), *cells(teacher)])
    entries = {
        r.checkpoint: Entry.leading_of(report, r)
        for r in report.averages
        if (r.protocol, r.scope) == (protocol, ALL) and r.checkpoint in members
    }
    in_order = [r.checkpoint for r in order([entries[i].leading for i in members if i in entries])]
    for i in [*in_order, *(i for i in members if i not in entries)]:
        entry = entries.get(i)
        lines.append(
            [
                formatting.rank(entry.leading) if entry else "",
                report.checkpoints[i].label,
                *(column.text(report, entry) if entry else formatting.NOTHING for column in shown.values()),
                *cells(i),
            ]
        )
    return f"{formatting.PROTOCOL_TITLES[protocol]}\n{aligned(lines)}"


def _score(values: list[float] | None, direction: str) -> str:
    if not values:
        return formatting.NOTHING
    mean = sum(values) / len(values)
    return formatting.percent(mean) if direction == "higher" else f"{mean:.3f}"


def _by_context(report: Report) -> str:
    return "\n\n".join(
        aligned([(figure.title, *figure.table.columns[1:]), *figure.table.rows])
        for figure in report.of(context_views)
        if figure.table is not None
    )

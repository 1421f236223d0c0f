"""report.md: the report as GitHub-flavored Markdown, narrow enough for a pull request."""

from evalsuite.reports import formatting
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.figures.figure import Values
from evalsuite.reports.headline import headline
from evalsuite.reports.markdown import escape, table
from evalsuite.reports.measures.ablations import ABLATIONS, ablation_rows, ablations
from evalsuite.reports.measures.ablations.sentences import ablation_sentence, repeat_sentences
from evalsuite.reports.measures.gap import GAP
from evalsuite.reports.measures.leaderboard import Entry, columns_of
from evalsuite.reports.measures.pairs import replicate_sentences
from evalsuite.reports.measures.papers import PAPERS, orders, paper_comparison
from evalsuite.reports.measures.papers.comparison import order_sentences
from evalsuite.reports.measures.recall import (
    against_recovery,
    context_views,
    correlations,
    recall,
    recall_numbers,
)
from evalsuite.reports.report import Report


def report_markdown(report: Report) -> str:
    """Render headline, recovery, comparisons, gap, recall and ablations as tables, then the warnings."""
    parts = [f"## {escape(headline(report))}", _about(report)]
    for teacher in report.teachers:
        parts += _recovery(report, teacher)
    parts += _incomplete(report)
    parts += _paper_comparison(report)
    parts += _gap(report)
    parts += _recall(report)
    parts += _variants(report)
    if report.warnings:
        parts.append("### Warnings\n\n" + "\n".join(f"- {escape(w)}" for w in report.warnings))
    parts.append(
        "<sub>Recovery: student ÷ teacher, ratio of macro averages over the informative benchmarks. "
        "Parentheses: 95 % intervals.</sub>"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(report: Report) -> str:
    documents = report.documents
    names = ", ".join(escape(report.checkpoints[i].label) for i in report.teachers) or "none"
    return (
        f"Teacher: {names} · students: {len(report.students())} · "
        f"benchmarks: {formatting.benchmarks(report)} · documents: {formatting.count(documents)} · "
        f"scores: {formatting.count(report.tensor.score_rows)}"
    )


def _recovery(report: Report, teacher: int) -> list[str]:
    if not report.protocols:  # no document has the scores of all seeds yet
        return []
    students = report.students(teacher)
    columns = columns_of(report, "markdown")
    main = report.protocols[0]
    rows = [r for r in report.averages if r.checkpoint in students and (r.scope, r.protocol) == (ALL, main)]
    lines: list[list[str]] = []
    notes: list[str] = []
    for leading in order([Entry.of(report, row).leading for row in rows]):
        entries = {
            protocol: Entry.leading_of(report, row)
            for protocol in report.protocols
            if (row := report.average(leading.checkpoint, protocol)) is not None
        }
        cells = [
            formatting.rank(leading) or formatting.NOTHING,
            f"**{escape(report.checkpoints[leading.checkpoint].label)}**",
        ]
        for column in columns.values():
            for protocol in report.protocols if column.per_protocol else (main,):
                entry = entries.get(protocol)
                part = column.per_protocol and entry is not None and entry.average.missing
                cells.append(
                    formatting.NOTHING
                    if entry is None
                    else column.text(report, entry) + (r"\*" if part else "")
                )
                if part and not notes:
                    notes.append(r"\* Incomplete: averaged over the benchmarks that have scores; no rank.")
        lines.append(cells)
    if not lines:
        return []
    header = ["rank", "model"]
    for column in columns.values():
        header += (
            [f"{column.header}, {formatting.PROTOCOL_TITLES[protocol]}" for protocol in report.protocols]
            if column.per_protocol
            else [column.header]
        )
    notes += _left_out(report, teacher)
    seeds = [escape(text) for protocol in report.protocols for text in replicate_sentences(report, protocol)]
    title = f"### Recovery of {escape(report.checkpoints[teacher].label)}"
    return ["\n\n".join([title, table(header, lines), *notes, *seeds])]


def _left_out(report: Report, teacher: int) -> list[str]:
    """What recovery leaves out because the teacher's scores say nothing there, with the reasons."""
    titles = {benchmark.name: benchmark.title for benchmark in report.benchmarks}
    found = []
    for protocol in report.protocols:
        rows = [r for r in report.informative if (r.teacher, r.protocol) == (teacher, protocol)]
        left = [f"{titles[row.benchmark]}: {row.why}" for row in rows if not row.is_informative]
        if left:
            what = f"Not informative under {formatting.PROTOCOL_TITLES[protocol]}, {len(left)} of {len(rows)}"
            found.append(f"{what}: {escape('; '.join(left))}.")
    return found


def _incomplete(report: Report) -> list[str]:
    """Incomplete scores of benchmarks that have score rows."""
    lines = []
    for protocol in report.protocols:
        started = report.started(protocol)
        for benchmark in (each for each in report.benchmarks if each.name in started):
            for i, checkpoint in enumerate(report.checkpoints):
                if incomplete := report.incomplete(i, benchmark.name, protocol):
                    place = f"{escape(benchmark.title)}, {formatting.PROTOCOL_TITLES[protocol]}"
                    counts = formatting.coverage(*incomplete)
                    lines.append([f"**{escape(checkpoint.label)}**", place, counts])
    header = ["model", "benchmark", "documents"]
    return [f"### Incomplete, not measured\n\n{table(header, lines)}"] if lines else []


def _paper_comparison(report: Report) -> list[str]:
    rows = sorted(report.of(paper_comparison), key=lambda row: -(row.recovery.point or 0.0))
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row.benchmarks))
    title = f"### Comparison with {escape(rows[0].citation)}, on {', '.join(names)}"
    found = [escape(text) for order in report.of(orders) for text in order_sentences(report, order)]
    return ["\n\n".join([title, PAPERS.of(rows).markdown(report), *found])]


def _variants(report: Report) -> list[str]:
    parts = []
    for ablation in report.of(ablations):
        text = escape(ablation_sentence(report, ablation))
        title = f"#### {escape(ablation.base)}"
        shown = ABLATIONS.of(ablation_rows(ablation)).markdown(report)
        seeds = [escape(sentence) for sentence in repeat_sentences(report, ablation)]
        parts.append("\n\n".join([title, shown, text, *seeds]))
    return ["### Ablations\n\n" + "\n\n".join(parts)] if parts else []


def _gap(report: Report) -> list[str]:
    rows = [row for row in report.gaps if row.benchmark == ALL]
    if not rows:
        return []
    shown = GAP.of(rows).markdown(report)
    text = f"### Log-likelihood vs. generation, on the same documents\n\n{shown}"
    if report.agreement is not None and report.agreement.pairs:
        agreement = report.agreement
        tau = "" if agreement.tau is None else f" (Kendall τ {formatting.plain(agreement.tau, 2)})"
        text += (
            f"\n\n{len(agreement.inversions)} of {agreement.pairs} student pairs change order between the "
            f"protocols{tau}; {sum(i.proven for i in agreement.inversions)} of the changes are significant."
        )
    return [text]


def _recall(report: Report) -> list[str]:
    """The recall numbers over all contexts, then the scores by context, as the page has them."""
    numbers = report.of(recall_numbers)
    parts = [] if numbers is None else [_values("model", numbers)]
    shown_against = next(iter(against_recovery(report.of(recall))), None)
    parts += [
        f"Spearman's ρ of recovery under log-likelihood and {shown_against.number.title} in "
        f"{formatting.tokens(row.context)} tokens: {formatting.plain(row.rho, 2)} over {row.count} students."
        for row in report.of(correlations)
        if row.students == "all" and shown_against is not None
    ]
    by_context = [
        _values(f"{figure.title}, %", figure.table)
        for figure in report.of(context_views)
        if figure.table is not None
    ]
    return [
        f"### {title}\n\n" + "\n\n".join(each)
        for title, each in (("Recall", parts), ("Scores by context", by_context))
        if each
    ]


def _values(title: str, values: Values) -> str:
    """Texts as a table, `title` in the place of the first header."""
    rows = [[escape(text) for text in row] for row in values.rows]
    return table([escape(title), *values.columns[1:]], rows)

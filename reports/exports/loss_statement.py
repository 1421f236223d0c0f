"""The Distillation Loss Statement: what a student retained, what it lost, what was not measured.

The term is from arXiv 2604.25110. Every number comes from the report, with its interval and its number of
documents; what the runs do not show is named as not measured.
"""

from evalsuite.foundation.model_card import table
from evalsuite.foundation.taxonomy import CATEGORIES, PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.rows import AverageRow, DropRow
from evalsuite.reports.markdown import escape
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.measures.distances import distances
from evalsuite.reports.records.distances import ANSWERS
from evalsuite.reports.report import Report

NOT_MEASURED = "not measured"


def loss_statement(report: Report, student: int) -> str:
    """The statement of one student as Markdown, without its heading.

    Args:
        report: with the student's teacher.
        student: index of a checkpoint that has a teacher.
    """
    teacher = report.checkpoints[student].teacher
    assert teacher is not None
    counts = {
        protocol: sum(
            row.documents for row in report.scores if (row.checkpoint, row.protocol) == (student, protocol)
        )
        for protocol in PROTOCOLS
    }
    documents = " and ".join(
        f"{count:,} under {formatting.PROTOCOL_TITLES[protocol]}"
        for protocol, count in counts.items()
        if count
    )
    name = escape(report.checkpoints[teacher].label)
    introduction = (
        f"Compared with its teacher '{name}' on the same documents ({documents or NOT_MEASURED}). "
        "Parentheses: 95 % intervals. A loss or gain is listed if it is significant after Holm's correction "
        "over all students and benchmarks of the runs."
    )
    parts = [introduction, f"**Retained**\n\n{_retained(report, student, teacher)}"]
    parts += [f"**Lost**\n\n{_changed(report, student, 'loss')}"]
    gained = _changed(report, student, "gain")
    parts += [f"**Gained**\n\n{gained}"] if gained != _NONE else []
    distances = _distances(report, student)
    parts += [f"**Distance from the teacher**\n\n{distances}"] if distances else []
    parts += [f"**Not measured**\n\n{_not_measured(report, student, teacher)}"]
    return "\n\n".join(parts)


_NONE = "None is proven."


def _retained(report: Report, student: int, teacher: int) -> str:
    """One line per protocol and scope: recovery, agreement and retained answers."""
    rows = []
    for protocol in PROTOCOLS:
        averages = [row for row in report.averages if (row.checkpoint, row.protocol) == (student, protocol)]
        for row in averages:
            answers = agreement_with_teacher(report, student, protocol, row.scope)
            base = report.average(teacher, protocol, row.scope)
            title = formatting.CATEGORY_TITLES.get(row.scope, row.scope.capitalize())
            rows.append(
                [
                    f"{title}, {formatting.PROTOCOL_TITLES[protocol]}",
                    f"{row.documents:,}",
                    _score(base),
                    _score(row),
                    _shown(row.recovery),
                    _shown(None if answers is None else answers.agreement),
                    _shown(None if answers is None else answers.retained),
                ]
            )
    if not rows:
        return f"Nothing: recovery is {NOT_MEASURED}."
    header = [
        "benchmarks",
        "documents",
        "teacher, %",
        "student, %",
        "recovery, %",
        "same answer as the teacher, %",
        "teacher's right answers that stay right, %",
    ]
    return table(header, rows)


def _score(row: AverageRow | None) -> str:
    if row is None:
        return NOT_MEASURED
    return f"{formatting.percent(row.score.point)} ({formatting.span(row.score)})"


def _shown(value: Estimate | None) -> str:
    if value is None or value.interval is None:
        return NOT_MEASURED
    return formatting.estimate(value)


def _changed(report: Report, student: int, kind: str) -> str:
    """Benchmarks with a proven loss or gain, largest first."""
    titles = {benchmark.name: benchmark.title for benchmark in report.benchmarks}
    uninformative = {(each.benchmark, each.protocol) for each in report.informative if each.why}
    rows = []
    for row in sorted(_drops(report, student), key=lambda row: -abs(row.drop.point)):
        if row.kind != kind:
            continue
        sign = 1 if kind == "loss" else -1
        cells = [
            each
            for each in report.scores
            if (each.checkpoint, each.benchmark, each.protocol) == (student, row.benchmark, row.protocol)
        ]
        points = row.drop.scaled(100 * sign) if not _is_perplexity(report, row) else row.drop.scaled(sign)
        unit = " points" if not _is_perplexity(report, row) else " nats"
        mark = " (not informative)" if (row.benchmark, row.protocol) in uninformative else ""
        rows.append(
            [
                f"{escape(titles[row.benchmark])}, {formatting.PROTOCOL_TITLES[row.protocol]}{mark}",
                f"{sum(each.documents for each in cells):,}",
                f"{formatting.plain(points.point, 2 if unit == ' nats' else 1)}{unit} "
                f"({formatting.span(points, 1, 2 if unit == ' nats' else 1)})",
                f"{row.p_holm:.2g}" if row.p_holm >= 1e-4 else "&lt; 0.0001",
                _total([each.losses for each in cells]),
                _total([each.wins for each in cells]),
            ]
        )
    if not rows:
        return _NONE
    what = "drop" if kind == "loss" else "gain"
    header = ["benchmark", "documents", what, "p", "documents that got worse", "documents that got better"]
    return table(header, rows)


def _drops(report: Report, student: int) -> list[DropRow]:
    return [row for row in report.drops if row.checkpoint == student]


def _is_perplexity(report: Report, row: DropRow) -> bool:
    plan = next(benchmark for benchmark in report.benchmarks if benchmark.name == row.benchmark)
    return plan.protocols[row.protocol].direction == "lower"  # type: ignore[index]


def _total(counts: list[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{sum(known):,}" if len(known) == len(counts) else NOT_MEASURED


def _distances(report: Report, student: int) -> str:
    """One line per text, of these weights only: KL divergence, top-1 agreement, equivalent bits."""
    rows = [
        [
            "right answers of the benchmarks" if row.text == ANSWERS else escape(row.text),
            f"{row.documents:,}",
            f"{row.tokens:,}",
            f"{row.kl.point:.3g} ({row.kl.low:.3g} to {row.kl.high:.3g})",
            f"{formatting.percent(row.agreement.point)} ({formatting.span(row.agreement)})",
            _bits(row.equivalent_bits),
        ]
        for row in report.of(distances)
        if (row.checkpoint, row.kind, row.is_retrained) == (student, "all", False)
    ]
    header = [
        "text",
        "documents",
        "tokens",
        "KL divergence, nats per token",
        "same most likely token, %",
        "as far as rounding the teacher to, bits",
    ]
    return table(header, rows) if rows else ""


def _bits(value: Estimate) -> str:
    if value.interval is None:
        return NOT_MEASURED
    return f"{value.interval.point:.1f} ({formatting.span(value.interval, 1)})"


def _not_measured(report: Report, student: int, teacher: int) -> str:
    """What the runs do not show, one line each."""
    lines = []
    for protocol in PROTOCOLS:
        title = formatting.PROTOCOL_TITLES[protocol]
        if not any(row.checkpoint == student and row.protocol == protocol for row in report.scores):
            lines.append(f"{title[0].upper()}{title[1:]}: no benchmark was evaluated under it.")
    for cell in report.tensor.incomplete:
        if cell.checkpoint in (student, teacher):
            plan = next(benchmark for benchmark in report.benchmarks if benchmark.name == cell.benchmark)
            label = report.checkpoints[cell.checkpoint].label
            lines.append(f"{cell.sentence([label], plan.title)}.")
    for row in report.informative:
        if row.teacher == teacher and row.why:
            plan = next(benchmark for benchmark in report.benchmarks if benchmark.name == row.benchmark)
            title = formatting.PROTOCOL_TITLES[row.protocol]
            lines.append(f"{plan.title}, {title}: not informative, since {row.why}.")
    there = {benchmark.category for benchmark in report.benchmarks}
    absent = [
        formatting.CATEGORY_TITLES[each].lower()
        for each in CATEGORIES
        if each not in there and each != "other"
    ]
    if absent:
        lines.append(f"No benchmark of: {', '.join(absent)}.")
    if not _distances(report, student):
        lines.append("Distance from the teacher over the whole vocabulary (see evalsuite distance).")
    lines.append("Everything that no benchmark above tests, such as safety and other languages.")
    return "\n".join(f"- {escape(line)}" for line in lines)

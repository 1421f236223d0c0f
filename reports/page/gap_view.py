"""The gap section of the page: both protocols per benchmark, why writing fails, which ranks change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.reports import words
from evalsuite.reports.analysis.gaps import CLASSES
from evalsuite.reports.analysis.rows import Agreement, GapRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.page.axes import Axis, nice_axis
from evalsuite.reports.page.charts import rank_lines
from evalsuite.reports.page.marks import Dumbbell, Share, axis_mark, dumbbells, stack
from evalsuite.reports.records import PROTOCOLS
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.interval import Interval


@dataclass(frozen=True, slots=True)
class GapLine:
    """One benchmark of one student."""

    title: str
    about: str
    bells: Markup
    ranked: str
    written: str
    gap: str
    interval: str
    kind: str
    """`loss`, `gain` or `tie`."""
    key: str
    counts: tuple[tuple[str, tuple[str, ...]], ...]
    """Who → documents right both ways, only ranked, only written, neither."""


@dataclass(frozen=True, slots=True)
class GapTable:
    """One student."""

    subject: int
    label: str
    lines: tuple[GapLine, ...]
    total: GapLine | None


@dataclass(frozen=True, slots=True)
class CauseLine:
    """How the written answers of one checkpoint end."""

    label: str
    role: str
    bar: Markup
    shares: tuple[str, ...]
    explained: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankView:
    """Which checkpoints change places."""

    sentence: str
    lines: Markup
    left: tuple[tuple[str, str], ...]
    """Label and score by rank."""
    right: tuple[tuple[str, str], ...]
    inversions: tuple[str, ...]
    """A sentence each, those that are proven first."""


@dataclass(frozen=True, slots=True)
class GapView:
    """The section."""

    axis: Markup
    tables: tuple[GapTable, ...]
    chosen: int
    """Subject that is shown first: the one with the largest gap."""
    causes: tuple[CauseLine, ...]
    ranks: tuple[RankView, ...]
    caption: str


def gap_view(report: Report) -> GapView | None:
    """The section; None where nothing was asked under both protocols."""
    if not report.gaps:
        return None
    levels = [100 * v for row in report.gaps for v in (*row.ranked.values(), *row.written.values())]
    axis = nice_axis(levels, include=[0.0, 100.0], steps=4)
    subjects = list(dict.fromkeys(row.subject for row in report.gaps))
    tables = tuple(_table(report, subject, axis) for subject in subjects)
    totals = [row for row in report.gaps if row.benchmark == ALL]
    benchmarks = {row.benchmark for row in report.gaps} - {ALL}
    documents = max(row.documents for row in totals)
    return GapView(
        axis=axis_mark(axis, 5),
        tables=tables,
        chosen=max(totals, key=lambda row: row.gap.point).subject,
        causes=tuple(_causes(report, totals)),
        ranks=tuple(_ranks(report)),
        caption=(
            f"{words.count(documents)} questions of {len(benchmarks)} "
            f"benchmark{'s' if len(benchmarks) != 1 else ''} were asked twice: once answers were ranked by "
            "log-likelihood, once the answer had to be written. A line runs from the teacher (ring) to the "
            "student (disc); its length is what was lost. The gap is the loss when written minus the loss "
            "when ranked."
        ),
    )


def _table(report: Report, subject: int, axis: Axis) -> GapTable:
    rows = [row for row in report.gaps if row.subject == subject]
    lines = tuple(_line(report, row, axis) for row in rows if row.benchmark != ALL)
    total = next((_line(report, row, axis) for row in rows if row.benchmark == ALL), None)
    return GapTable(subject, report.subjects[subject].label, lines, total if len(lines) > 1 else None)


def _line(report: Report, row: GapRow, axis: Axis) -> GapLine:
    titles = {benchmark.name: benchmark.title for benchmark in report.benchmarks}
    title = titles.get(row.benchmark, "Average")
    if row.context is not None:
        title += f", {words.tokens(row.context)}"
    pairs = [
        Dumbbell(
            kind,
            100 * levels["teacher"],
            100 * levels["student"],
            f"{kind}: teacher {words.percent(levels['teacher'])}, student {words.percent(levels['student'])}",
        )
        for kind, levels in (("ranked", row.ranked), ("written", row.written))
    ]
    return GapLine(
        title=title,
        about=f"{words.count(row.documents)} questions",
        bells=dumbbells(pairs, axis),
        ranked=words.signed(-100 * row.deficit_ranked.point),
        written=words.signed(-100 * row.deficit_written.point),
        gap=words.signed(100 * row.gap.point),
        interval=words.span(row.gap),
        kind=_kind(row.gap),
        key="" if row.benchmark == ALL else f"gap|{row.subject}|{row.benchmark}|{row.context or ''}",
        counts=tuple(
            (who, tuple(words.count(round(number)) for number in row.right[who]))
            for who in ("teacher", "student")
        ),
    )


def _kind(gap: Interval) -> str:
    return "loss" if gap.low > 0 else "gain" if gap.high < 0 else "tie"


def _causes(report: Report, totals: Sequence[GapRow]) -> list[CauseLine]:
    """How written answers end, over the benchmarks asked under both protocols: teachers, then students."""
    lines = []
    teachers: set[int] = set()
    for row in totals:
        teacher = report.subjects[row.subject].teacher
        if teacher is not None and teacher not in teachers:
            teachers.add(teacher)
            lines.append(_cause(report.subjects[teacher].label, "teacher", row, ("",) * (len(CLASSES) + 1)))
        explained = tuple(
            words.NOTHING if row.explained[name] is None else words.signed(100 * (row.explained[name] or 0.0))
            for name in (*CLASSES, "any")
        )
        lines.append(_cause(report.subjects[row.subject].label, "student", row, explained))
    return lines


def _cause(label: str, who: str, row: GapRow, explained: tuple[str, ...]) -> CauseLine:
    outcomes, right = row.outcomes[who], row.written[who]
    bad = {name: outcomes[name] for name in CLASSES}
    # An answer that is cut off or loops may still be right, so what is neither right nor bad is the rest.
    rest = max(0.0, 1.0 - right - sum(bad.values()))
    right = 1.0 - rest - sum(bad.values())
    shares = [Share("right", right, "right"), Share("wrong", rest, "wrong answer")]
    shares += [Share(name, bad[name], words.OUTCOME_TITLES[name]) for name in CLASSES]
    return CauseLine(
        label=label,
        role=who,
        bar=stack(shares),
        shares=tuple(words.percent(bad[name]) for name in CLASSES),
        explained=explained,
    )


def _ranks(report: Report) -> list[RankView]:
    """Who changes places: on the same questions and, where those say little, over everything."""
    found = []
    if (agreement := report.agreement) is not None and len(agreement.subjects) > 1:
        rows = {row.subject: row for row in report.gaps if row.benchmark == ALL}
        ranked = {s: rows[s].ranked["student"] for s in agreement.subjects}
        written = {s: rows[s].written["student"] for s in agreement.subjects}
        about = "Averages over the benchmarks asked both ways."
        found.append(_rank_view(report, agreement, ranked, written, about))
    if (agreement := report.over_all) is not None:
        points = []
        for protocol in PROTOCOLS:
            averages = {s: report.average(s, protocol) for s in agreement.subjects}
            points.append({s: row.recovery.point or 0.0 for s, row in averages.items() if row is not None})
        about = "Recovery over everything that was asked under each protocol."
        found.append(_rank_view(report, agreement, points[0], points[1], about))
    return found


def _rank_view(
    report: Report,
    agreement: Agreement,
    left: Mapping[int, float],
    right: Mapping[int, float],
    about: str,
) -> RankView:
    subjects = agreement.subjects
    ranked = sorted(subjects, key=lambda s: -left[s])
    written = sorted(subjects, key=lambda s: -right[s])
    moved = {
        i for inversion in agreement.inversions for i in (inversion.ranked_above, inversion.written_above)
    }
    label_of = {subject: report.subjects[subject].label for subject in subjects}
    tau = "" if agreement.tau is None else f" (Kendall τ = {words.plain(agreement.tau, 2)})"
    proven = sum(inversion.proven for inversion in agreement.inversions)
    sentence = f"{len(agreement.inversions)} of {agreement.pairs} pairs of students change order{tau}"
    if agreement.inversions:
        sentence += f"; {proven or 'none'} of the changes {'is' if proven == 1 else 'are'} proven both ways."
    else:
        sentence += "."
    said = "; ".join(
        f"{label_of[s]}: {ranked.index(s) + 1} when ranked, {written.index(s) + 1} when written"
        for s in subjects
    )
    return RankView(
        sentence=f"{sentence} {about}",
        lines=rank_lines(
            [ranked.index(s) for s in subjects],
            [written.index(s) for s in subjects],
            [s in moved for s in subjects],
            f"Rank of each student. {said}",
        ),
        left=tuple((label_of[s], words.percent(left[s])) for s in ranked),
        right=tuple((label_of[s], words.percent(right[s])) for s in written),
        inversions=tuple(
            f"{label_of[i.ranked_above]} is {100 * i.difference_ranked:.1f} points above "
            f"{label_of[i.written_above]} when ranked, {100 * i.difference_written:.1f} below when written"
            f"{' (both proven)' if i.proven else ''}."
            for i in sorted(agreement.inversions, key=lambda inversion: not inversion.proven)
        ),
    )

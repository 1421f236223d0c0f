"""Agreement with the teacher: a scatter against recovery, and flips behind equal averages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

import plotly.graph_objects as go

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.flips import Flip
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.figures.figure import Figure, Values, figure, text
from evalsuite.reports.figures.plots import FEW_MARKS, Axis, Curve, Mark, Point, scatter
from evalsuite.reports.figures.small_multiples import small_multiples
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.agreement.rows import (
    WHY,
    AgreementPool,
    AgreementRow,
    agreement_rows,
    benchmark_agreement_rows,
    ceiling_rows,
)
from evalsuite.reports.measures.agreement.tolerance import ToleranceRow, tolerance_rows
from evalsuite.reports.measures.leaderboard import Entry
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.rules.evidence import NO_TEACHER, Evidence, lost_documents, matches
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.metric import Measured, RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.statistics.power import retained_margin
from evalsuite.reports.table import (
    CSV,
    Column,
    Table,
    Value,
    label_column,
    percentage,
    teacher_column,
    weights_column,
)


@dataclass(frozen=True, slots=True)
class AgreementRows:
    """How often students choose as their teachers, and runs of one recipe as one another."""

    by_scope: tuple[AgreementRow, ...]
    """Every student compared with its teacher, per protocol and scope: agreement, retained, flips."""
    by_benchmark: tuple[AgreementRow, ...]
    """The same per benchmark and context."""
    ceilings: tuple[AgreementRow, ...]
    """The same between training runs of one recipe, over all benchmarks: what another seed changes."""


def agreements(report: Report) -> AgreementRows:
    """Rows per scope and per benchmark of the students of every teacher, and between runs of one recipe."""
    rows, by_benchmark, ceilings = [], [], []
    for protocol, whole in report.of(resampled).items():
        informative = report.informative_names(protocol)
        for teacher, names in informative.items():
            pool = AgreementPool(report.tensor, protocol, teacher)
            rows += agreement_rows(pool, whole.recipes, names)
            by_benchmark += benchmark_agreement_rows(pool)
        ceilings += ceiling_rows(report.tensor, protocol, whole.recipes, informative)
    return AgreementRows(tuple(rows), tuple(by_benchmark), tuple(ceilings))


def agreement_with_teacher(
    report: Report, checkpoint: int, protocol: str, scope: str = ALL
) -> AgreementRow | None:
    """The agreement row of a student in a scope."""
    place = checkpoint, protocol, scope
    rows = report.of(agreements).by_scope
    return next((row for row in rows if (row.checkpoint, row.protocol, row.scope) == place), None)


def leading_agreement(report: Report, checkpoint: int, protocol: str) -> AgreementRow | None:
    """The agreement row over the informative benchmarks, or over all where none is."""
    informative = agreement_with_teacher(report, checkpoint, protocol, INFORMATIVE)
    return informative or agreement_with_teacher(report, checkpoint, protocol)


def tolerances(report: Report) -> list[ToleranceRow]:
    """Share of benchmarks and documents within a tolerance of the teacher, per student and scope."""
    return [
        row
        for name, pool in report.of(resampled).items()
        for row in tolerance_rows(pool, report.informative_names(name))
    ]


def tolerance_of(report: Report, checkpoint: int, protocol: str, scope: str = ALL) -> ToleranceRow | None:
    """The tolerance curve of a student in a scope."""
    place = checkpoint, protocol, scope
    rows = report.of(tolerances)
    return next((row for row in rows if (row.checkpoint, row.protocol, row.scope) == place), None)


def _figures(report: Report) -> list[Figure]:
    """Scatter, flips and tolerance per protocol, where answers can be compared."""
    figures: list[Figure] = []
    for protocol in report.protocols:
        scope = _scope(report.of(agreements).by_scope, protocol)
        rows = [
            row
            for student in report.students()
            if (row := agreement_with_teacher(report, student, protocol, scope)) is not None
        ]
        made = _scatter(report, rows, protocol), _flips(report, rows, protocol), *_tolerance(report, protocol)
        figures += [each for each in made if each is not None]
    return figures


def _notes(report: Report) -> list[str]:
    what = "Agreement is the share of documents on which student and teacher choose the same."
    return [f"{_sentence(report)} {what}".strip()] if report.of(agreements).by_scope else []


def _scope(rows: Iterable[AgreementRow | ToleranceRow], protocol: str) -> str:
    """The informative benchmarks, on which recovery is compared, too; all where none is informative."""
    informative = any(row.scope == INFORMATIVE for row in rows if row.protocol == protocol)
    return INFORMATIVE if informative else ALL


def _benchmarks(scope: str) -> str:
    return "informative benchmarks" if scope == INFORMATIVE else "all benchmarks"


def _sentence(report: Report) -> str:
    """What the best student exchanged for its recovery; empty if it is unknown."""
    best = formatting.best_student(report)
    scope = ALL if best is None else _scope(report.of(agreements).by_scope, best.protocol)
    row = None if best is None else agreement_with_teacher(report, best.checkpoint, best.protocol, scope)
    if best is None or row is None or row.lost.point is None or row.gained.point is None:
        return ""
    label = report.checkpoints[row.checkpoint].label
    return (
        f"Recovery is a ratio of averages: {label} loses {formatting.percent(row.lost.point)} % of the "
        f"documents and gains {formatting.percent(row.gained.point)} % over {_benchmarks(scope)} under "
        f"{formatting.PROTOCOL_TITLES[row.protocol]}; averages show only the difference."
    )


def _scatter(report: Report, rows: list[AgreementRow], protocol: str) -> Figure | None:
    """Recovery and agreement of every student; the ceiling is that of two runs of one recipe."""
    found = [
        (row, average.recovery.interval, row.agreement.interval)
        for row in rows
        if (average := report.average(row.checkpoint, protocol, row.scope)) is not None
    ]
    points = [(row, x, y) for row, x, y in found if x is not None and y is not None]
    if not points:
        return None
    scope = points[0][0].scope
    ceilings = [
        row.agreement.point
        for row in report.of(agreements).ceilings
        if (row.protocol, row.scope) == (protocol, scope) and row.agreement.point is not None
    ]
    labels = [report.checkpoints[row.checkpoint].label for row, _, _ in points]
    texts = [(formatting.estimate(Estimate(x)), formatting.estimate(Estimate(y))) for _, x, y in points]
    caption = f"Over {_benchmarks(scope)}. Equal recoveries hide different choices."
    ceiling = fmean(ceilings) if ceilings else None
    if ceiling is not None:
        caption += f" Dotted: agreement of two training runs of one recipe, {100 * ceiling:.1f} % on average."
    return scatter(
        [
            Mark(label, x, y, f"{label}: recovery {recovery} %, agreement {agreement} %")
            for label, (_, x, y), (recovery, agreement) in zip(labels, points, texts, strict=True)
        ],
        Axis("recovery, %"),
        Axis("agreement, %"),
        title=f"Agreement against recovery, {formatting.PROTOCOL_TITLES[protocol]}",
        caption=caption,
        reference=ceiling,
        table=Values(
            ("model", "recovery %", "agreement %", "κ"),
            tuple(
                (label, *both, formatting.NOTHING if row.kappa.point is None else f"{row.kappa.point:.2f}")
                for label, both, (row, _, _) in zip(labels, texts, points, strict=True)
            ),
        ),
    )


def _flips(report: Report, rows: list[AgreementRow], protocol: str) -> Figure | None:
    """Documents lost to the left, gained to the right, for every student; fewest losses on top."""
    known = [
        (report.checkpoints[row.checkpoint].label, row, row.lost.point, row.gained.point)
        for row in rows
        if row.lost.point is not None and row.gained.point is not None
    ]
    if not known:
        return None
    known.sort(key=lambda each: each[2])
    places = list(range(len(known)))
    traces = [
        go.Bar(
            y=places,
            x=values,
            orientation="h",
            name=name,
            marker={"color": paint},
            hovertext=[
                text(f"{label}: {name} {formatting.estimate(getattr(row, name))} %")
                for label, row, _, _ in known
            ],
            hoverinfo="text",
        )
        for name, values, paint in (
            ("lost", [-100 * lost for _, _, lost, _ in known], "var(--loss)"),
            ("gained", [100 * gained for *_, gained in known], "var(--gain)"),
        )
    ]
    return figure(
        traces,
        {
            "barmode": "relative",
            "bargap": 0.25,
            "yaxis": {
                "tickvals": places,
                "ticktext": [text(each[0]) for each in known],
                "autorange": "reversed",
                "showgrid": False,
            },
            "xaxis": {"title": {"text": "% of documents"}, "zeroline": True},
        },
        title=f"Flips, {formatting.PROTOCOL_TITLES[protocol]}",
        caption=(
            "Documents that only the teacher has right (lost) or only the student (gained), over "
            f"{_benchmarks(rows[0].scope)}."
        ),
        height=max(240, 20 * len(known) + 70),
        table=Values(
            ("model", "lost %", "gained %", "retained %"),
            tuple(
                (
                    label,
                    formatting.estimate(row.lost),
                    formatting.estimate(row.gained),
                    formatting.estimate(row.retained),
                )
                for label, row, _, _ in known
            ),
        ),
        is_wide=len(rows) > FEW_MARKS,
    )


def _tolerance(report: Report, protocol: str) -> list[Figure]:
    """Tolerance curves over the informative benchmarks, or over all where none is informative."""
    every = [row for row in report.of(tolerances) if row.protocol == protocol]
    scope = _scope(every, protocol)
    rows = sorted(
        (row for row in every if row.scope == scope and len(row.benchmarks) > 1),
        key=lambda row: row.critical_half.point,
    )
    if not rows:
        return []
    labels = [report.checkpoints[row.checkpoint].label for row in rows]
    return small_multiples(
        [
            Curve(
                label,
                tuple(
                    Point(100 * alpha, 100 * share.point)
                    for alpha, share in zip(row.alphas, row.curve, strict=True)
                ),
                lineage_of(report.checkpoints[row.checkpoint]).family,
            )
            for label, row in zip(labels, rows, strict=True)
        ],
        Axis("tolerance α, % of the teacher's score"),
        Axis("C(α), % of benchmarks", low=0),
        title=f"Tolerance, {formatting.PROTOCOL_TITLES[protocol]}",
        caption=(
            f"Share of {'informative ' if scope == INFORMATIVE else ''}benchmarks on which a student is "
            "within α of its teacher; α* is where it reaches half (arXiv 2603.15590)."
        ),
        height=320,
        is_step=True,
        table=Values(
            ("model", "α*, %", "95 % interval", "all benchmarks within, %"),
            tuple(
                (
                    label,
                    f"{100 * row.critical_half.point:.1f}",
                    formatting.span(row.critical_half),
                    f"{100 * row.critical_all:.1f}",
                )
                for label, row in zip(labels, rows, strict=True)
            ),
        ),
    )


ESTIMATES = (
    *("agreement", "scored_agreement", "kappa", "retained", "lost", "gained"),
    *("recipe_agreement", "recipe_retained"),
)
AGREEMENT: Table[AgreementRow] = Table(
    name="agreement",
    title="What changed behind the averages",
    rows=lambda report: report.of(agreements).by_scope,
    columns=(
        label_column(),
        weights_column(),
        teacher_column(),
        Column("protocol", unit="text"),
        Column("scope", unit="text"),
        Column("benchmarks", value=lambda report, row: " ".join(row.benchmarks), unit="text"),
        Column("documents"),
        *(percentage(name) for name in ESTIMATES),
    ),
    json="agreements",
    order=24,
    anchor="retention",
    notes=_notes,
    figures=_figures,
    shows_rows=False,
)


def _flips_of(measure: Flip) -> Measured:
    """Measure agreement with the teacher, or the share of its right answers that is retained."""

    def measured(
        evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
    ) -> Measurement | NotMeasured:
        assert protocol is not None
        teacher = evidence.tensor.checkpoints[checkpoint].teacher
        if teacher is None:
            return NO_TEACHER
        found = evidence.sample(rule, protocol, [checkpoint, teacher])
        if isinstance(found, NotMeasured):
            return found
        pool = evidence.of(AgreementPool, protocol, teacher)
        left_out = evidence.left_out(rule, protocol, checkpoint)
        chosen = [i for i, cell in enumerate(pool.cells) if matches(rule, cell, left_out)]
        chosen = pool.cells_with(measure, [checkpoint], chosen)
        data = pool.sample(measure, chosen)
        if data is None:
            return NotMeasured(WHY[measure])
        contrast = pool.level(data, measure, checkpoint)
        look_at = lost_documents([pool.cells[i] for i in chosen], checkpoint, teacher)
        return Measurement(contrast, data.documents, look_at)

    return measured


_METRICS = {
    "agreement": RuleMetric(
        measure=_flips_of("agreement"),
        bound="min",
        unit="fraction",
        hint="share of documents with the teacher's choice or extracted answer, e.g. 0.8",
        has_option=True,
        has_scope=True,
    ),
    "retained": RuleMetric(
        measure=_flips_of("retained"),
        bound="min",
        unit="fraction",
        hint="share of the teacher's right answers that stay right, e.g. 0.85",
        has_option=True,
        has_scope=True,
        planned=retained_margin,
    ),
}


def agreement_of(report: Report, entry: Entry) -> AgreementRow | None:
    """The agreement row of the leaderboard's entry."""
    compared = entry.compared
    return agreement_with_teacher(report, compared.checkpoint, compared.protocol, compared.scope)


def _in_entry(name: str) -> Callable[[Report, Entry], Value]:
    def value(report: Report, entry: Entry) -> Value:
        row = agreement_of(report, entry)
        found: Value = None if row is None else getattr(row, name)
        return found

    return value


def _critical(report: Report, entry: Entry) -> Value:
    average = entry.average
    row = tolerance_of(report, average.checkpoint, average.protocol, average.scope)
    return None if row is None else row.critical_half


COLUMNS: tuple[Column[Entry], ...] = (
    percentage(
        "agreement",
        title="agreement",
        hint="Share of documents on which the student makes the teacher's choice: the highest summed "
        "log-probability, or the extracted answer.",
        value=_in_entry("agreement"),
        better="higher",
    ),
    percentage(
        "retained",
        title="retained",
        hint="Share of the teacher's right answers that stay right.",
        value=_in_entry("retained"),
        better="higher",
    ),
    percentage(
        "scored_agreement",
        title="scored agreement",
        hint="Agreement of the choices that the metric picks.",
        value=_in_entry("scored_agreement"),
        outputs=CSV,
        better="higher",
    ),
    Column(
        "kappa",
        title="κ",
        hint="Cohen's κ: agreement beyond that of independent choices.",
        value=_in_entry("kappa"),
        digits=2,
        outputs=("csv", "page"),
        with_interval=False,
        kind="estimate",
        better="higher",
    ),
    percentage(
        "lost",
        title="lost",
        hint="Share of documents that only the teacher has right.",
        value=_in_entry("lost"),
        better="lower",
        outputs=("csv", "page"),
        with_interval=False,
    ),
    percentage(
        "gained",
        title="gained",
        hint="Share of documents that only the student has right.",
        value=_in_entry("gained"),
        outputs=("csv", "page"),
        with_interval=False,
        better="higher",
    ),
    Column(
        "critical_tolerance",
        title="α*",
        hint="The smallest relative tolerance within which the student is on half of the benchmarks.",
        value=_critical,
        kind="interval",
        better="lower",
        outputs=("csv", "page"),
        with_interval=False,
        unit="percent",
    ),
)
MEASURES.add(
    "agreement",
    Measure(
        tables=(AGREEMENT,),
        columns=COLUMNS,
        json={
            "agreements_by_benchmark": lambda report: report.of(agreements).by_benchmark,
            "agreement_ceilings": lambda report: report.of(agreements).ceilings,
            "tolerances": tolerances,
        },
        metrics=_METRICS,
    ),
)

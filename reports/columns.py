"""The columns of the leaderboard, each declared once: page, CSV, Markdown and terminal read `COLUMNS`.

A column is added by one definition and one registration; see docs/how-to/add-a-column.md:

    COLUMNS.add("capped_recovery", Column(
        title="capped",
        hint="Recovery in which no benchmark counts above its teacher.",
        value=lambda entry: entry.average.capped_recovery,
    ))
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from evalsuite.foundation.registry import Registry
from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.measures.agreement import AgreementRow
from evalsuite.reports.analysis.measures.distances import DistanceRow
from evalsuite.reports.analysis.measures.efficiency import Quantity, typical_ratio
from evalsuite.reports.analysis.measures.tolerance import ToleranceRow
from evalsuite.reports.analysis.rows import AverageRow, GapRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import Interval

Value = Estimate | Interval | float | int | str | None
"""An estimate or interval, a number, or a text; None where the column does not apply."""
Output = Literal["csv", "page", "markdown", "terminal"]
EVERYWHERE: tuple[Output, ...] = ("csv", "page", "markdown", "terminal")
TABLES: tuple[Output, ...] = ("page", "markdown", "terminal")


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the leaderboard: a checkpoint in a scope under a protocol, with what else is known of it."""

    report: Report
    average: AverageRow
    agreement: AgreementRow | None
    """Compared with its teacher in the same scope."""
    tolerance: ToleranceRow | None
    """The tolerance curve in the same scope."""
    distance: DistanceRow | None
    """At the answers of all benchmarks; None in the scopes of categories."""
    gap: GapRow | None
    """Between the protocols, over all benchmarks with both."""

    @classmethod
    def of(cls, report: Report, average: AverageRow) -> "Entry":
        """Collect the rows that belong to an average."""
        where = average.checkpoint, average.protocol, average.scope
        return cls(
            report=report,
            average=average,
            agreement=report.agreement_with_teacher(*where),
            tolerance=report.tolerance(*where),
            distance=report.distance(average.checkpoint) if average.scope in (ALL, INFORMATIVE) else None,
            gap=report.gap(average.checkpoint),
        )

    @classmethod
    def leading_of(cls, report: Report, average: AverageRow) -> "Entry":
        """The only row of a checkpoint, compared with its teacher on the benchmarks of `leading`."""
        entry = cls.of(report, average)
        return replace(entry, agreement=cls.of(report, entry.leading).agreement)

    @property
    def is_student(self) -> bool:
        """Whether the checkpoint has a teacher."""
        return self.report.checkpoints[self.average.checkpoint].teacher is not None

    @property
    def leading(self) -> AverageRow:
        """The average that ranks: over the informative benchmarks, or this one where none is informative."""
        found = self.report.average(self.average.checkpoint, self.average.protocol, INFORMATIVE)
        return self.average if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: what it shows, how, and where."""

    title: str
    """Header of a table, without its unit."""
    hint: str
    """One sentence that explains it."""
    value: Callable[[Entry], Value]
    kind: Literal["estimate", "interval", "value"] = "estimate"
    """What `value` returns where it is not None: an `Estimate`, an `Interval`, or a number or text. In a CSV
    an interval has three cells, an estimate a fourth with the reason why it is undefined."""
    unit: Literal["percent", "points", "number", "text"] = "percent"
    """`percent` and `points` are stored as fractions and shown times 100; points have a sign."""
    better: Literal["higher", "lower"] | None = "higher"
    """Direction of sorting; None for a column without one."""
    outputs: tuple[Output, ...] = EVERYWHERE
    with_interval: bool = True
    """Whether tables show the interval next to the point."""
    per_protocol: bool = False
    """Whether a table of both protocols has one such column each."""
    digits: int = 1
    note: Callable[[Entry], str] = lambda entry: ""
    """What a reader must know about a cell, shown on hover; tables mark the cell with †."""

    @property
    def header(self) -> str:
        """The title with its unit."""
        return {"percent": f"{self.title} %", "points": f"{self.title}, points"}.get(self.unit, self.title)

    def text(self, entry: Entry) -> str:
        """The cell of a table; a dash for None, and a mark where there is a note."""
        text = self._text(entry)
        return f"{text} †" if text != formatting.NOTHING and self.note(entry) else text

    def _text(self, entry: Entry) -> str:
        value = self.value(entry)
        if isinstance(value, Estimate):
            value = value.interval
        if value is None or value == "":
            return formatting.NOTHING
        if isinstance(value, str):
            return value
        if isinstance(value, Interval):
            text = self._number(value.point)
            return (
                f"{text} ({formatting.span(value, self._scale, self.digits)})" if self.with_interval else text
            )
        return self._number(value)

    def sort_key(self, entry: Entry) -> float | None:
        """The number to sort by; None comes last."""
        value = self.value(entry)
        if isinstance(value, Estimate | Interval):
            return value.point
        return None if value is None or isinstance(value, str) else float(value)

    def csv(self, name: str, entry: Entry) -> dict[str, float | str | None]:
        """Unrounded cells of a CSV, the same ones for every entry."""
        value = self.value(entry)
        if self.kind == "value":
            assert not isinstance(value, Estimate | Interval), f"column '{name}' is of kind '{self.kind}'"
            return {name: value}
        if self.kind == "interval":
            assert value is None or isinstance(value, Interval), f"column '{name}' is of kind '{self.kind}'"
            return formatting.interval_cells(name, value)
        assert value is None or isinstance(value, Estimate), f"column '{name}' is of kind '{self.kind}'"
        return formatting.estimate_cells(name, value)

    @property
    def _scale(self) -> float:
        return 100.0 if self.unit in ("percent", "points") else 1.0

    def _number(self, value: float) -> str:
        if isinstance(value, int):
            return formatting.count(value)
        show = formatting.signed if self.unit == "points" else formatting.plain
        return show(self._scale * value, self.digits)


COLUMNS: Registry[Column] = Registry("leaderboard column")


def columns_of(output: Output) -> dict[str, Column]:
    """The columns of an output by name, in order of registration."""
    return {name: column for name, column in COLUMNS.items() if output in column.outputs}


def _retrained(entry: Entry) -> str:
    if entry.distance is None or not entry.distance.is_retrained:
        return ""
    return "† measured on other weights: the same recipe, trained again"


def _agreement(name: str) -> Callable[[Entry], Value]:
    return lambda entry: None if entry.agreement is None else getattr(entry.agreement, name)


_CSV: tuple[Output, ...] = ("csv",)
for _name, _column in {
    "rank": Column(
        title="rank",
        hint="By recovery; the best and worst rank that are not excluded stand next to it.",
        value=lambda entry: entry.average.rank,
        kind="value",
        unit="number",
        better="lower",
        outputs=_CSV,
    ),
    "rank_low": Column(
        title="best rank",
        hint="1 + the number of students proven better.",
        value=lambda entry: entry.average.rank_low,
        kind="value",
        unit="number",
        better="lower",
        outputs=_CSV,
    ),
    "rank_high": Column(
        title="worst rank",
        hint="The number of students − those proven worse.",
        value=lambda entry: entry.average.rank_high,
        kind="value",
        unit="number",
        better="lower",
        outputs=_CSV,
    ),
    "informative_recovery": Column(
        title="recovery",
        hint="Student ÷ teacher over the informative benchmarks: the teacher is above chance and, under "
        "generation, names an answer in 90 % of its responses.",
        value=lambda entry: entry.leading.recovery if entry.is_student else None,
        outputs=TABLES,
        per_protocol=True,
    ),
    "informative_share_of_lead": Column(
        title="share of the lead",
        hint="(student − chance) ÷ (teacher − chance) over the informative benchmarks.",
        value=lambda entry: entry.leading.chance_normalized_recovery if entry.is_student else None,
        outputs=("markdown", "terminal"),
        per_protocol=True,
    ),
    "recovery": Column(
        title="recovery, all",
        hint="Student ÷ teacher, ratio of macro averages over all benchmarks.",
        value=lambda entry: entry.average.recovery,
        outputs=EVERYWHERE,
        with_interval=False,
    ),
    "chance_normalized_recovery": Column(
        title="share of the lead",
        hint="(student − chance) ÷ (teacher − chance): what is left of the teacher's lead over guessing, "
        "which a plain recovery overstates.",
        value=lambda entry: entry.average.chance_normalized_recovery,
        outputs=("csv", "page"),
    ),
    "score": Column(
        title="score",
        hint="Macro average of the scores.",
        value=lambda entry: entry.average.score,
        kind="interval",
        outputs=_CSV,
    ),
    "drop": Column(
        title="drop",
        hint="Teacher − student, macro average.",
        value=lambda entry: entry.average.drop,
        kind="interval",
        unit="points",
        better="lower",
        outputs=_CSV,
    ),
    "win_or_tie_rate": Column(
        title="win or tie",
        hint="Share of documents on which the student scores at least as high as the teacher.",
        value=lambda entry: entry.average.win_or_tie_rate,
        kind="value",
        outputs=("csv", "page"),
    ),
    "benchmarks": Column(
        title="benchmarks",
        hint="Benchmarks of the average.",
        value=lambda entry: " ".join(entry.average.benchmarks),
        kind="value",
        unit="text",
        better=None,
        outputs=_CSV,
    ),
    "missing": Column(
        title="missing",
        hint="Benchmarks of the scope without scores; if any, there is no rank.",
        value=lambda entry: " ".join(entry.average.missing),
        kind="value",
        unit="text",
        better=None,
        outputs=_CSV,
    ),
    "documents": Column(
        title="documents",
        hint="Documents of the average.",
        value=lambda entry: entry.average.documents,
        kind="value",
        unit="number",
        outputs=_CSV,
    ),
    "capped_recovery": Column(
        title="capped",
        hint="Recovery in which no benchmark counts above its teacher.",
        value=lambda entry: entry.average.capped_recovery,
        outputs=("csv", "page"),
        with_interval=False,
    ),
    "agreement": Column(
        title="agreement",
        hint="Share of documents on which the student makes the teacher's choice: the highest summed "
        "log-probability, or the extracted answer.",
        value=_agreement("agreement"),
    ),
    "retained": Column(
        title="retained",
        hint="Share of the teacher's right answers that stay right.",
        value=_agreement("retained"),
    ),
    "scored_agreement": Column(
        title="scored agreement",
        hint="Agreement of the choices that the metric picks.",
        value=_agreement("scored_agreement"),
        outputs=_CSV,
    ),
    "kappa": Column(
        title="κ",
        hint="Cohen's κ: agreement beyond that of independent choices.",
        value=_agreement("kappa"),
        unit="number",
        digits=2,
        outputs=("csv", "page"),
        with_interval=False,
    ),
    "lost": Column(
        title="lost",
        hint="Share of documents that only the teacher has right.",
        value=_agreement("lost"),
        better="lower",
        outputs=("csv", "page"),
        with_interval=False,
    ),
    "gained": Column(
        title="gained",
        hint="Share of documents that only the student has right.",
        value=_agreement("gained"),
        outputs=("csv", "page"),
        with_interval=False,
    ),
    "critical_tolerance": Column(
        title="α*",
        hint="The smallest relative tolerance within which the student is on half of the benchmarks.",
        value=lambda entry: None if entry.tolerance is None else entry.tolerance.critical_half,
        kind="interval",
        better="lower",
        outputs=("csv", "page"),
        with_interval=False,
    ),
    "kl": Column(
        title="KL, nats",
        hint="KL(teacher ‖ student) per token at the right answers of all benchmarks, over the vocabulary.",
        value=lambda entry: None if entry.distance is None else entry.distance.kl,
        kind="interval",
        unit="number",
        better="lower",
        digits=3,
        outputs=("csv", "page"),
        with_interval=False,
        note=_retrained,
    ),
    "equivalent_bits": Column(
        title="bits",
        hint="Bits of the rounding of the teacher that is as far from it.",
        value=lambda entry: None if entry.distance is None else entry.distance.equivalent_bits,
        unit="number",
        outputs=("csv", "page"),
        with_interval=False,
        note=_retrained,
    ),
    "distance_trained_again": Column(
        title="distance of the recipe, trained again",
        hint="1 if KL and bits were measured on other weights: the same recipe, trained again.",
        value=lambda entry: None if entry.distance is None else int(entry.distance.is_retrained),
        kind="value",
        unit="number",
        better=None,
        outputs=_CSV,
    ),
    "counted_with": Column(
        title="counted with",
        hint="Benchmarks of the scope whose requests another one has: the two count once.",
        value=lambda entry: " ".join(f"{a}={b}" for a, b in entry.average.counts_with.items()),
        kind="value",
        unit="text",
        better=None,
        outputs=_CSV,
    ),
    "gap": Column(
        title="gap",
        hint="Drop under generation − drop under log-likelihood, on documents with both.",
        value=lambda entry: None if entry.gap is None else entry.gap.gap,
        kind="interval",
        unit="points",
        better="lower",
        outputs=("markdown",),
    ),
}.items():
    COLUMNS.add(_name, _column)


def _cost(quantity: Quantity) -> Callable[[Entry], Value]:
    def value(entry: Entry) -> Value:
        own = entry.report.checkpoints[entry.average.checkpoint]
        if own.teacher is None or entry.average.scope != ALL:
            return None
        teacher = entry.report.checkpoints[own.teacher].plan.weights_id
        return typical_ratio(entry.report.efficiency, own.plan.weights_id, teacher, quantity)

    return value


_LONG = "Teacher ÷ student at 32k tokens, or at the longest measured context; more is better."
_COSTS: dict[Quantity, str] = {"prefill": "prefill, ×", "decode": "decode, ×", "cache": "cache, ×"}
_NUMBER: dict[str, Any] = {"kind": "interval", "unit": "number", "outputs": ("csv", "page")}
for _quantity, _title in _COSTS.items():
    COLUMNS.add(f"{_quantity}_ratio", Column(title=_title, hint=_LONG, value=_cost(_quantity), **_NUMBER))

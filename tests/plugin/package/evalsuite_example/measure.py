"""A measure: the lead over guessing, with its table, page section, leaderboard column and gate rule."""

from dataclasses import dataclass

from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.measure import Measure
from evalsuite.reports.measures.leaderboard import Entry
from evalsuite.reports.report import Report
from evalsuite.reports.rules.evidence import Evidence
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import Column, Table, label_column

EVALSUITE_API = 1


@dataclass(frozen=True)
class LeadRow:
    """One checkpoint on one benchmark under one protocol."""

    checkpoint: int
    benchmark: str
    protocol: str
    lead: Interval
    """Score − chance."""


def lead_rows(report: Report) -> list[LeadRow]:
    """The lead on every benchmark whose documents have one chance level."""
    chance = {
        cell.key: float(cell.chance[0])
        for cell in report.tensor.cells
        if cell.chance is not None and len(set(cell.chance)) == 1
    }
    rows = []
    for row in report.scores:
        level = chance.get((row.benchmark, row.protocol, row.context))
        if level is not None:
            score = row.score
            lead = Interval(score.point - level, score.low - level, score.high - level, score.method)
            rows.append(LeadRow(row.checkpoint, row.benchmark, row.protocol, lead))
    return rows


def mean_lead(report: Report, entry: Entry) -> float | None:
    """The mean over the benchmarks of all; None in other scopes."""
    average = entry.average
    leads = [
        row.lead.point
        for row in lead_rows(report)
        if (row.checkpoint, row.protocol) == (average.checkpoint, average.protocol)
    ]
    return sum(leads) / len(leads) if leads and average.scope == ALL else None


def gate_lead(ev: Evidence, rule: Rule, protocol: str | None, checkpoint: int) -> Measurement | NotMeasured:
    """The lead with the draws of the gate's bootstrap, in points."""
    found = ev.sample(rule, protocol or "", [checkpoint])
    if isinstance(found, NotMeasured):
        return found
    data, cells = found
    if any(cell.chance is None for cell in cells):
        return NotMeasured("the chance level of a benchmark is not known")
    lead = data.mean({checkpoint: 1.0, ev.pool(protocol or "").chance: -1.0})
    return Measurement(lead.scaled(100), data.documents, ())


LEAD = Measure(
    tables=(
        Table(
            name="example_lead",
            title="Lead over guessing",
            rows=lead_rows,
            columns=(
                label_column(),
                Column("benchmark", unit="text"),
                Column("protocol", unit="text"),
                Column("lead", kind="interval", unit="points", better="higher", hint="Score − chance."),
            ),
            order=21,
        ),
    ),
    columns=(Column("example_lead", "lead", "Mean of score − chance.", mean_lead, unit="points"),),
    metrics={
        "example_lead": RuleMetric(
            measure=gate_lead, bound="min", unit="points", hint="score − chance, in points", has_option=True
        )
    },
)

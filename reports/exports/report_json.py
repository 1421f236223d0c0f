"""report.json: the complete report, machine-readable."""

from collections.abc import Sequence
from typing import Any

import evalsuite
from evalsuite.reports import measures
from evalsuite.reports.headline import headline
from evalsuite.reports.json_values import to_json
from evalsuite.reports.report import Report
from evalsuite.reports.table import Table

SCHEMA = 5
"""5: equal requests count once, see `shared_requests`; 4: texts stand once, see `compact_json`."""


def report_json(report: Report, tables: Sequence[Table[Any]] | None = None) -> dict[str, Any]:
    """The report as JSON values.

    Scores are fractions, indices refer to `checkpoints`, undefined estimates carry a reason.

    Args:
        report: the report.
        tables: with rows computed, as `measures.computed` returns them; None: computed here.
    """
    tables = measures.computed(report)[0] if tables is None else tables
    values = {
        "schema": SCHEMA,
        "evalsuite": evalsuite.__version__,
        "headline": headline(report),
        "runs": [
            {"suite": plan.suite, "created": plan.created, "environment": environment}
            for plan, environment in zip(report.tensor.merged.plans, report.environments, strict=True)
        ],
        "checkpoints": [
            {"label": s.label, "teacher": s.teacher}
            | {name: each for name, each in to_json(s.stated).items() if name not in ("label", "tokenizer")}
            for s in report.checkpoints
        ],
        "benchmarks": [to_json(benchmark) for benchmark in report.benchmarks],
        "shared_requests": [
            {**to_json(each), "counts_once": each.counts_once} for each in report.tensor.counting.shared
        ],
        "score_rows": report.tensor.score_rows,
        "drops": [to_json(row) for row in report.drops],
        "incomplete": [to_json(cell) for cell in report.tensor.incomplete],
        "agreement": to_json(report.agreement),
        "agreement_over_all": to_json(report.agreement_over_all),
        "informative": [{**to_json(row), "is_informative": row.is_informative} for row in report.informative],
        "replicates": [to_json(row) for row in report.replicates],
        "doctor": [to_json(each) for each in report.doctor],
        "warnings": list(report.warnings),
    }
    values = report.of(measures.lists)[0] | values
    for table in tables:
        name = table.json or table.name
        values[f"{name}_table" if name in values else name] = table.to_json(report)
    return values

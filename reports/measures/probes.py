"""Recurrent states while a needle is read, per layer and segment."""

from evalsuite.reports.analysis.measures.probes import ProbeRow
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.table import Column, Table, label_column, weights_column

ESTIMATES = (
    *("tokens_right", "half_life", "longest_half_life", "beta", "write", "norm", "rank"),
    *("retained", "readout"),
)
PROBES: Table[ProbeRow] = Table(
    name="probes",
    title="States while a needle is read",
    rows=lambda report: report.probes,
    columns=(
        label_column(),
        weights_column(),
        Column("benchmark", unit="text"),
        Column("context"),
        Column("kind", unit="text"),
        Column("group", unit="text"),
        Column("documents"),
        Column("found"),
        Column("layer"),
        Column("mixer", unit="text"),
        Column("segment", unit="text"),
        *(Column(name, kind="estimate") for name in ESTIMATES),
        Column("readout_head"),
    ),
)
MEASURES.add("probes", Measure(tables=(PROBES,)))

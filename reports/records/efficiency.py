"""The efficiency measurements of all runs of a report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalsuite.foundation.efficiency import FILE as FILE
from evalsuite.foundation.efficiency import EfficiencyRow as EfficiencyRow
from evalsuite.foundation.efficiency import Spread as Spread
from evalsuite.foundation.efficiency import read_measurements
from evalsuite.reports.records.names import labels_of_weights


def read_efficiency(runs: Sequence[Path]) -> list[EfficiencyRow]:
    """Read the efficiency measurements of all runs; the label of two models gets their weights as a suffix.

    Raises:
        DataError: a line that is no measurement.
    """
    found = [row for run in runs for row in read_measurements(run)]
    labels = labels_of_weights((row.weights_id, row.label) for row in found)
    return [replace(row, label=labels[row.weights_id]) for row in found]

"""The registry of exporters: a report in the formats that others read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evalsuite.foundation import DataError, content_hash, counted
from evalsuite.foundation.registry import Registry
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import Benchmark, ProtocolSettings


@dataclass(frozen=True, slots=True)
class Export:
    """What an exporter wrote."""

    files: tuple[Path, ...]
    left_out: tuple[str, ...] = ()
    """One sentence for everything that the format cannot hold."""


class Exporter(Protocol):
    """Writes a report in one format."""

    title: str
    """Name of the format."""

    def write(self, report: Report, out: Path) -> Export:
        """Write the files below `out`.

        Raises:
            DataError: nothing of the report can be written in this format.
            RunFolderError: `out` cannot be written.
        """
        ...


EXPORTERS: Registry[Exporter] = Registry("exporter", group="evalsuite.exporters")
"""Exporters by the name that `evalsuite export --format` takes."""


def export(runs: Sequence[Path], name: str, out: Path, *, selection: RunSelection | None = None) -> Export:
    """Write the report of runs in one format.

    Args:
        runs: run folders.
        name: of an exporter.
        out: folder for the files.
        selection: teacher, checkpoints, partial cells and errors, as for `compare`.

    Raises:
        ConfigError: unknown exporter or checkpoint.
        DataError, RunFolderError: as `build_report` and the exporter.
    """
    exporter = EXPORTERS.get_or_raise(name, "--format")
    return exporter.write(build_report(list(runs), selection), Path(out))


@dataclass(frozen=True, slots=True)
class Measured:
    """One complete score of a checkpoint, with its plan."""

    row: BenchmarkRow
    benchmark: Benchmark
    how: ProtocolSettings

    @property
    def name(self) -> str:
        """Name of the benchmark and its context, unique within a protocol."""
        return self.row.benchmark if self.row.context is None else f"{self.row.benchmark}@{self.row.context}"


def measured(report: Report, checkpoint: int) -> list[Measured]:
    """The complete scores of a checkpoint, in the order of the plan."""
    plans = {benchmark.name: benchmark for benchmark in report.benchmarks}
    return [
        Measured(row, plans[row.benchmark], plans[row.benchmark].protocols[row.protocol])  # type: ignore[index]
        for row in report.scores
        if row.checkpoint == checkpoint
    ]


def folder_of(report: Report, checkpoint: int) -> str:
    """A file name for a checkpoint, which no other one of the report has.

    Raises:
        DataError: nothing of the label can be part of a file name.
    """
    labels = [each.label for each in report.checkpoints]
    names = [re.sub(r"[^A-Za-z0-9_.+-]+", "-", label).strip("-.") for label in labels]
    name, label = names[checkpoint], labels[checkpoint]
    if not name:
        raise DataError(f"checkpoint '{label}': its label has no letter or digit to name a folder by")
    alike = [each.casefold() for each in names].count(name.casefold())
    return name if alike == 1 else f"{name}-{content_hash(label)[:6]}"


def created(report: Report, checkpoint: int) -> str:
    """When the first run of a checkpoint was made, ISO 8601."""
    plans = report.tensor.merged.plans
    return min(plans[run].created for run in report.checkpoints[checkpoint].runs)


def describe(each: Measured) -> str:
    """Protocol, metric, few-shot examples, documents and interval of a score, in one line."""
    low, high = 100 * each.row.score.low, 100 * each.row.score.high
    protocol = {"loglikelihood": "log-likelihood"}.get(each.row.protocol, each.row.protocol)
    parts = [
        protocol,
        each.how.metric,
        f"{each.how.num_fewshot}-shot",
        counted(each.row.documents, "document"),
        f"95 % interval {low:.2f} to {high:.2f}",
    ]
    return ", ".join(parts)

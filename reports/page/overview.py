"""Overview: the line below the headline."""

from collections.abc import Mapping
from typing import Any

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.report import Report


def meta(report: Report) -> list[str]:
    """The line under the headline."""
    students = len(report.students())
    parts = []
    teachers = [report.checkpoints[i] for i in report.teachers]
    if teachers:
        parts.append("teacher " + ", ".join(teacher.label for teacher in teachers))
    parts.append(counted(students, "student") + _tokens_each(report))
    seeds = max((len(cell.seeds) for cell in report.tensor.cells), default=1)
    planned = len(report.benchmarks)
    parts.append(formatting.benchmarks(report).removesuffix(str(planned)) + counted(planned, "benchmark"))
    if seeds > 1:
        parts.append(counted(seeds, "seed"))
    parts.append(counted(report.tensor.score_rows, "score"))
    devices = {name for environment in report.environments for name in _devices(environment)}
    parts += sorted(devices)
    parts.append(max(plan.created for plan in report.tensor.merged.plans)[:10])
    return parts


def _tokens_each(report: Report) -> str:
    counts = {lineage_of(report.checkpoints[i]).tokens for i in report.students()}
    only = counts.pop() if len(counts) == 1 else None
    return f", {formatting.tokens(only)} tokens each" if only else ""


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; empty for any other value."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _devices(environment: Mapping[str, Any]) -> list[str]:
    # Published samples have the environments of all of their runs.
    if runs := _mappings(environment.get("runs")):
        return [name for run in runs for name in _devices(run)]
    machines = [environment, *_mappings(environment.get("inference_hosts"))]
    found = {str(name) for machine in machines for name in machine.get("accelerators") or ()}
    if found:
        return sorted(found)
    device = environment.get("device")
    return [str(device)] if device else []

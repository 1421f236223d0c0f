"""Redaction of a report for publication: no absolute paths of the machine that made it."""

from dataclasses import replace

from evalsuite.foundation.machine_paths import last_components
from evalsuite.reports.measures.efficiency import efficiency
from evalsuite.reports.report import Report


def redact(report: Report) -> Report:
    """Reduce absolute paths of checkpoints, teachers and data to their last component."""
    merged = report.tensor.merged
    merged = replace(
        merged,
        checkpoints=tuple(each.portable() for each in merged.checkpoints),
        diverged=tuple(replace(each, note=each.note.portable()) for each in merged.diverged),
    )
    tensor = replace(report.tensor, merged=merged)
    runs = {str(run): run.name for run in merged.runs if run.is_absolute()}
    warnings = []
    for warning in report.warnings:
        for path, name in runs.items():
            warning = warning.replace(path, name)
        warnings.append(warning)
    rows = [replace(row, detail=last_components(row.detail)) for row in report.of(efficiency)]
    return report.having(efficiency, rows).with_(
        tensor=tensor,
        environments=tuple(last_components(environment) for environment in report.environments),
        warnings=tuple(warnings),
    )

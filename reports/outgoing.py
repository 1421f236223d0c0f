"""A report as it goes out: what only means something on the machine that made it stays at home."""

from dataclasses import replace
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from evalsuite.reports.merging import Subject
from evalsuite.reports.report import Report


def without_local_paths(report: Report) -> Report:
    """The report with absolute paths of checkpoints, teachers and data cut to their last part."""
    merged = report.panel.merged
    panel = replace(report.panel, merged=replace(merged, subjects=tuple(map(_subject, merged.subjects))))
    runs = {str(run): run.name for run in merged.runs if run.is_absolute()}
    warnings = []
    for warning in report.warnings:
        for path, name in runs.items():
            warning = warning.replace(path, name)
        warnings.append(warning)
    return replace(
        report,
        panel=panel,
        environments=tuple(shortened(environment) for environment in report.environments),
        warnings=tuple(warnings),
    )


def _subject(subject: Subject) -> Subject:
    plan = subject.plan
    update = {"path": shortened(plan.path), "lineage": shortened(plan.lineage)}
    return replace(subject, plan=plan.model_copy(update=update))


def shortened(value: Any) -> Any:
    """JSON in which every text that is an absolute path is its last part."""
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(each) for each in value]
    if isinstance(value, str) and "\n" not in value:
        kinds: tuple[type[PurePath], ...] = (PurePosixPath, PureWindowsPath)
        for kind in kinds:
            if kind(value).is_absolute() and kind(value).name:
                return kind(value).name
    return value

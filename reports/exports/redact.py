"""Redaction of a report for publication: no absolute paths of the machine that made it."""

import re
from dataclasses import replace
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from evalsuite.reports.measures.efficiency import efficiency
from evalsuite.reports.records.merging import CheckpointEntry, DivergedEntry
from evalsuite.reports.report import Report

_PATHS = re.compile(
    r"(?<![\w.~/\\])(?:file://)?(?:/[\w.@+~%-]+){2,}/?" r"|(?<![A-Za-z])[A-Za-z]:\\[^\s'\"<>|]+"
)
"""Absolute paths of two components or more within a text; one component may be a unit: ``tokens /s``."""


def redact(report: Report) -> Report:
    """Reduce absolute paths of checkpoints, teachers and data to their last component."""
    merged = report.tensor.merged
    merged = replace(
        merged,
        checkpoints=tuple(map(_subject, merged.checkpoints)),
        diverged=tuple(map(_diverged, merged.diverged)),
    )
    tensor = replace(report.tensor, merged=merged)
    runs = {str(run): run.name for run in merged.runs if run.is_absolute()}
    warnings = []
    for warning in report.warnings:
        for path, name in runs.items():
            warning = warning.replace(path, name)
        warnings.append(warning)
    rows = [row.model_copy(update={"detail": last_components(row.detail)}) for row in report.of(efficiency)]
    return report.having(efficiency, rows).with_(
        tensor=tensor,
        environments=tuple(last_components(environment) for environment in report.environments),
        warnings=tuple(warnings),
    )


def _subject(checkpoint: CheckpointEntry) -> CheckpointEntry:
    plan = checkpoint.plan
    update = {"path": last_components(plan.path), "lineage": last_components(plan.lineage)}
    return replace(checkpoint, plan=replace(plan, **update))


def _diverged(student: DivergedEntry) -> DivergedEntry:
    note = student.note
    return replace(student, note=replace(note, path=last_components(note.path)))


def last_components(value: Any) -> Any:
    """Reduce every absolute path in the strings of a JSON value to its last component."""
    if isinstance(value, dict):
        return {key: last_components(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [last_components(each) for each in value]
    if isinstance(value, str) and "\n" not in value:
        kinds: tuple[type[PurePath], ...] = (PurePosixPath, PureWindowsPath)
        for kind in kinds:
            if kind(value).is_absolute() and kind(value).name:
                return kind(value).name
    return without_paths(value) if isinstance(value, str) else value


def without_paths(text: str) -> str:
    """Reduce the absolute paths within a text to their last components."""
    return _PATHS.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)

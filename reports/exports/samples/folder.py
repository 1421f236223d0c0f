"""The run folder that holds the samples of a report.

`compare`, `gate` and `view` read it like the runs that it was made from, so that a later run can be compared
with a published page, and a large leaderboard grows run by run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evalsuite.foundation import RunFolderError, write_bytes
from evalsuite.foundation.machine_paths import last_components, without_paths
from evalsuite.reports.exports.samples.rows import merged_score_files
from evalsuite.reports.json_values import to_json
from evalsuite.reports.measures.efficiency import efficiency as measurements
from evalsuite.reports.measures.layers import selections
from evalsuite.reports.measures.training import loss_curves
from evalsuite.reports.records import distances, efficiency, probes
from evalsuite.reports.records.loss_curves import LossCurve, loss_curve_path
from evalsuite.reports.records.merging import MergedPlan
from evalsuite.reports.records.score_files import read_info
from evalsuite.reports.records.table_file import TableFile
from evalsuite.reports.report import Report
from evalsuite.reports.run import FILE, manifest_json

FOLDER = "samples"
_OWN = (
    *(FILE, "environment.json", "doctor.json", "selection.json", efficiency.FILE),
    *(distances.FILE, probes.FILE, "scores/*.parquet", "training/*.jsonl"),
)
"""What an export may write, and removes if an earlier one wrote it."""


def export_samples(report: Report, out: Path, *, redacted: bool = False) -> list[Path]:
    """Write the run folder `<out>/samples` with all that `compare` reads from the runs of a report.

    It holds the checkpoints of the report with its labels and teachers, and the score rows that the report
    compares: other seeds, contexts and engines of the runs are left out. Details are reduced to responses and
    extracted answers, cut to `MAX_CHARACTERS`; see `merged_score_files`. Equal reports give equal bytes, and
    the samples of samples are the same.

    Args:
        report: if `redacted`, as `redact` returns it.
        out: folder of the page.
        redacted: reduce absolute paths to their last component.

    Returns:
        The files, sorted.

    Raises:
        RunFolderError: a run lies in `<out>/samples`, or it cannot be written.
        DataError: invalid score rows, or runs that no single manifest describes.
    """
    folder = Path(out) / FOLDER
    _refuse_a_run(folder)
    # All of it before the first file is written: the samples of a page may be one of its own runs, and stay
    # as they are if another run is refused.
    files = dict(_files(report, folder, redacted))
    for name, data in files.items():
        write_bytes(folder / name, data)
    for path in (path for pattern in _OWN for path in folder.glob(pattern)):
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()
    return sorted(folder / name for name in files)


def _refuse_a_run(folder: Path) -> None:
    """Raise RunFolderError if a folder is a run itself, which an export would overwrite."""
    infos = (read_info(path) for path in folder.glob("scores/*.parquet"))
    if (folder / "responses").exists() or any(info is not None and not info.merged for info in infos):
        raise RunFolderError(
            f"{folder}: holds a run, which exported samples would replace; choose another --out, or move "
            "the run"
        )


def _files(report: Report, folder: Path, redacted: bool) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file; the manifest, which makes the folder a run, comes last."""
    merged = report.tensor.merged
    manifest = manifest_json(merged.as_manifest())
    change = without_paths if redacted else str
    for name, data in merged_score_files(merged, report.tensor.selection, change):
        yield f"scores/{name}", data
    for table in (distances.DISTANCE_FILE, probes.PROBE_FILE):
        if (frame := _of_selected(table, merged)) is not None:
            yield table.name, table.pack(frame, folder / table.name, compression_level=19)
    for label, lines in _curve_lines(report.of(loss_curves)).items():
        yield loss_curve_path(Path(), label).as_posix(), _jsonl(lines)
    doctor, searches, costs = (
        _distinct(models, redacted)
        for models in (report.doctor, report.of(selections), report.of(measurements))
    )
    if environment := _environment(report.environments):
        yield "environment.json", _json(environment, indent=2)
    if doctor:
        yield "doctor.json", _json({"schema": 1, "checkpoints": doctor}, indent=2)
    if searches:
        yield "selection.json", _json(searches, indent=2)
    if costs:
        yield efficiency.FILE, _jsonl(costs)
    yield FILE, _json(manifest, indent=2)


def _of_selected(table: TableFile, merged: MergedPlan) -> pd.DataFrame | None:
    """Rows of a table of the runs without those of checkpoints that are not selected."""
    frame = table.read_all(merged.runs)
    if frame is None:
        return None
    left_out = merged.weights - {name for each in merged.checkpoints for name in each.weights}
    names = [name for name in ("weights_id", "same_recipe_as", "teacher") if name in frame]
    frame = frame[~frame[names].isin(left_out).any(axis=1)]
    return frame if len(frame) else None


def _curve_lines(curves: Sequence[LossCurve]) -> dict[str, list[dict[str, Any]]]:
    """Label → its training steps as in `training/<label>.jsonl`; of two curves of a stage the first."""
    lines: dict[str, list[dict[str, Any]]] = {}
    known = set()
    for curve in curves:
        if (curve.label, curve.stage) in known:
            continue
        known.add((curve.label, curve.stage))
        measured = {name: dict(points) for name, points in curve.validation.items()}
        lines.setdefault(curve.label, []).extend(
            {
                "stage": curve.stage,
                "tokens": tokens,
                "loss": loss,
                **{name: points.pop(tokens) for name, points in measured.items() if tokens in points},
            }
            for tokens, loss in zip(curve.tokens, curve.values, strict=True)
        )
    return lines


def _environment(environments: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The environment of the only run, or those of several as `runs`; equal ones count once."""
    runs: list[Mapping[str, Any]] = []
    for each in environments:
        runs += [run for run in each.get("runs", [each]) if run and run not in runs]
    return runs[0] if len(runs) == 1 else {"runs": runs} if runs else {}


def _distinct(models: Sequence[Any], redacted: bool) -> list[Any]:
    """Records as JSON; equal ones, such as those of a run that is merged again, count once."""
    values: list[Any] = []
    for model in models:
        value = to_json(model)
        value = last_components(value) if redacted else value
        values += [] if value in values else [value]
    return values


def _json(value: Any, indent: int | None = None) -> bytes:
    separators = None if indent else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def _jsonl(values: Sequence[Any]) -> bytes:
    return b"".join(map(_json, values))

"""Conversion of run folders whose manifest was spread over `plan.yaml` and other files."""

from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, RunFolderError, locked, read_json
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.reports.run import (
    EARLIER,
    SCHEMA,
    Manifest,
    is_run_folder,
    manifest_path,
    parse_manifest,
    read_environment,
    write_environment,
    write_manifest,
)

FORMER_SCHEMA = 3
"""Of `plan.yaml`."""
_FACTS = ("data", "documents", "left_out", "partial", "engines")
"""Of `environment.json`."""
_FORMER = (*EARLIER, "requests/registered.json", "requests/diverged.json")


def convert(run: Path) -> bool:
    """Write the manifest of a run folder of an earlier version, and remove the files that it replaces.

    Scores and responses stay as they are. A folder that is converted already is left alone.

    Returns:
        Whether the folder was converted.

    Raises:
        RunFolderError: not a run folder, one without `plan.yaml` or with another schema, or in use.
        DataError: a damaged file.
    """
    run = Path(run)
    if manifest_path(run).is_file():
        return False
    if not is_run_folder(run):
        raise RunFolderError(f"{run}: not a run folder (no {EARLIER[0]})")
    had_lock = (run / ".lock").exists()
    with locked(run / ".lock", wait=False):
        environment = read_environment(run)
        write_manifest(run, _read(run, environment))
        if environment:
            write_environment(run, environment)
        for name in _FORMER:
            (run / name).unlink(missing_ok=True)
    if not had_lock:
        (run / ".lock").unlink()
    return True


def _read(run: Path, environment: dict[str, Any]) -> Manifest:
    """Return the manifest, whose facts are taken out of an environment."""
    path = run / EARLIER[0]
    if not path.is_file():
        raise RunFolderError(f"{path}: no such file; copy it from where the run was built")
    value = read_yaml(path)
    if value.get("schema") != FORMER_SCHEMA:
        raise RunFolderError(
            f"{path}: 'schema' = {value.get('schema')!r}, and only {FORMER_SCHEMA} can be converted: copy "
            "responses/ into a new run folder and repeat the evaluation there; only what is missing is "
            "computed"
        )
    try:
        _add_requests(run, value)
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{run}: its requests/*.json cannot be converted ({error!r})") from error
    facts = {name: environment.pop(name) for name in _FACTS if name in environment}
    for name in ("seeds", "unread"):  # Follow from the rest.
        environment.pop(name, None)
    return parse_manifest(value | facts | {"schema": SCHEMA}, str(path))


def _add_requests(run: Path, value: dict[str, Any]) -> None:
    """Add what the index and the registrations state to the content of a plan."""
    _, index_path, registered_path, diverged_path = (run / name for name in _FORMER)
    if index_path.is_file():
        index = read_json(index_path)
        value["config"] = {key: each for key, each in index["config"].items() if key != "max_length"}
        known = {each["weights_id"]: each for each in value["checkpoints"]}
        registered = read_json(registered_path) if registered_path.is_file() else {}
        for each in index["checkpoints"]:
            facts = {"weights_id": each["weights_id"], "role": "student", "path": each["path"]}
            facts |= registered.get(each["weights_id"], {})
            new = known.setdefault(each["weights_id"], facts)
            new |= {"label": each["label"], "tokenizer": each["tokenizer"]}
            new["positions"] = each.get("positions") or new.get("positions")
        value["checkpoints"] = list(known.values())
    if diverged_path.is_file():
        value["diverged"] = [*value.get("diverged", ()), *read_json(diverged_path).values()]

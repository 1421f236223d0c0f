"""Checks of a run's inputs that take no time, before what runs models is imported, which takes seconds.

Importing this module is cheap: it needs neither pydantic nor torch.
"""

from collections.abc import Sequence
from pathlib import Path

from evalsuite.config import RunConfig
from evalsuite.evaluation.run_paths import read_built
from evalsuite.foundation import ConfigError, RunFolderError
from evalsuite.models.checkpoints.location import locate_here
from evalsuite.reports.run import Manifest, is_run_folder, read_environment
from evalsuite.tasks.requested import parse_requested, requested_name


def check_inputs(config: RunConfig, checkpoints: Sequence[str]) -> None:
    """Refuse a suite, checkpoints, a data folder or requests that are missing or invalid.

    What takes longer is refused where it is read: the contents of checkpoints and data, and ids that only the
    hub knows.

    Args:
        config: of the run.
        checkpoints: besides the teacher, with folders of checkpoints replaced by those inside.

    Raises:
        ConfigError: an unknown suite or benchmark, or an invalid file.
        CheckpointError: no checkpoint lies at a path.
        DataError: a missing data folder, or an invalid request manifest.
        RunFolderError: without the build phase: no requests, or those of another suite.
    """
    # Executors may load a checkpoint of a built run on a machine that is not this one.
    elsewhere: set[str] = set()
    if "build" in config.phases:
        _check_new_suite(config)
    else:
        manifest = read_built(Path(config.out))
        _check_built_suite(config, manifest)
        elsewhere = {each.path for each in manifest.checkpoints}
    for path in (config.teacher, *checkpoints):
        if path is not None and path not in elsewhere:
            locate_here(path)


def _check_new_suite(config: RunConfig) -> None:
    from evalsuite.tasks.sources.data import open_source
    from evalsuite.tasks.suite import load_suite, resolve, suite_folder

    assert config.suite is not None
    entries = resolve(load_suite(config.suite), near=suite_folder(config.suite), only=config.batches)
    reads_data = not config.skip_missing and any(benchmark.subject_sources for _, benchmark in entries)
    # A run that is resumed has its documents.
    if reads_data and not is_run_folder(Path(config.out)):
        open_source(config.data)


def _check_built_suite(config: RunConfig, manifest: Manifest) -> None:
    """Refuse a suite that is not the one of the run.

    The infer phase compares names only: it runs without the packages that read a suite.
    """
    if config.suite is None:
        return
    out = Path(config.out)
    if "score" in config.phases:
        from evalsuite.evaluation.plan import check_suite

        built = read_environment(out).get("config", {}).get("build", {}).get("limit")
        limit = config.limit if config.limit is not None else built
        check_suite(config.suite, manifest, out, limit=limit)
    elif (name := _suite_name(config.suite)) != manifest.suite:
        raise RunFolderError(
            f"{out}: holds a run of suite {manifest.suite}, not {name}; name that suite or none, or choose "
            "another --out"
        )


def _suite_name(suite: Path | str) -> str:
    """Return the name of a suite, which a YAML file states. Raises ConfigError for an unreadable file."""
    requested = parse_requested(str(suite))
    if len(requested) > 1 or not (requested[0].is_plain and requested[0].is_yaml):
        return requested_name(str(suite))
    from evalsuite.foundation.strict_yaml import read_yaml

    value = read_yaml(Path(suite))
    if "name" not in value:
        raise ConfigError(f"{suite}: not a suite (it has no 'name')")
    return str(value["name"])

"""Experiment trackers, where the scalars of a run can be followed besides its own files."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from evalsuite.foundation.dependencies import missing_dependency
from evalsuite.foundation.registry import Registry


class Tracker(ABC):
    """A run in an experiment tracker. A context manager that finishes it.

    Its `package` is imported when it is opened.

    Args:
        folder: the run folder.
        project: what the run belongs to: "evalsuite-distill" or "evalsuite-run".
        run: its name; a repeated command continues the run of this name.
        config: settings to store with it (JSON).
    """

    package: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: Path, project: str, run: str, config: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log scalars, named like paths (`student/loss`), at a step."""

    @abstractmethod
    def finish(self) -> None:
        """Write everything and end the run."""

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


TRACKERS: Registry[type[Tracker]] = Registry("tracker", group="evalsuite.trackers")
"""Name → tracker."""


def check_tracker(name: str) -> type[Tracker]:
    """Return the tracker `name`.

    Raises:
        ConfigError: no tracker of this name.
        MissingDependencyError: its package is not installed.
    """
    kind = TRACKERS.get_or_raise(name, "track")
    try:
        import_module(kind.package)
    except ModuleNotFoundError as error:
        raise missing_dependency(error, "distill") or error from None
    return kind


def open_tracker(name: str, folder: Path, *, project: str, run: str, config: Mapping[str, Any]) -> Tracker:
    """Start or continue a run in the tracker `name`; see `Tracker`. Raises as `check_tracker` does."""
    return check_tracker(name)(folder, project, run, config)


@TRACKERS.register("tensorboard")
class TensorBoardTracker(Tracker):
    """Event files in the folder `tensorboard` of the run folder."""

    package = "tensorboard"

    def __init__(self, folder: Path, project: str, run: str, config: Mapping[str, Any]) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        """Flush the event file."""
        self._writer.close()


@TRACKERS.register("trackio")
class TrackioTracker(Tracker):
    """A run of trackio, which `trackio show` displays; TRACKIO_DIR says where it is stored."""

    package = "trackio"

    def __init__(self, folder: Path, project: str, run: str, config: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        with redirect_stdout(sys.stderr):
            trackio.init(
                project, name=run, config=dict(config), resume="allow", embed=False, auto_log_cpu=False
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._trackio.log(dict(values), step=step)

    def finish(self) -> None:
        """Send everything that was logged."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()

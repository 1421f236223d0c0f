"""The interface of executors, and their registry."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from evalsuite.foundation import ConfigError, EvalsuiteError, nearest
from evalsuite.foundation.registry import Registry


class Channel(Protocol):
    """What a job reports to while it runs, wherever that is."""

    def send(self, message: Mapping[str, Any]) -> object:
        """Deliver a JSON value to the process that called `Executor.map`, in order."""

    def set_description(self, desc: str) -> object:
        """Name what runs now."""


class Job(Protocol):
    """One piece of work; `str` names it in progress and errors."""

    @property
    def group(self) -> str:
        """Jobs of one group share what a worker loads, such as a checkpoint."""

    @property
    def cost(self) -> float:
        """Expected time, in any unit."""

    @property
    def gpus(self) -> int | None:
        """GPUs that it needs; None: one if there are any."""

    def prepare(self) -> Any:
        """Return what a worker gets, which can be pickled.

        Called in the process of `Executor.map` whenever the job is handed out: after a worker was lost, it
        contains only what is left to do.
        """


class Worker(Protocol):
    """Runs jobs one after the other, and keeps what the next of the same group needs."""

    def run(self, prepared: Any, channel: Channel) -> Mapping[str, Any]:
        """Run what `Job.prepare` returned, and return a JSON value."""

    def close(self) -> None:
        """Release what it holds; it runs no job afterwards."""


def portable_error(error: BaseException, executor: str) -> Exception:
    """Return what a worker's process reports of an error: its class may not exist in the other process."""
    if isinstance(error, EvalsuiteError):
        return error
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"a worker of executor {executor} failed:\n{text}")


def deliver(kind: str, value: Any, channel: Channel) -> Any:
    """Deal with what a worker's process sends: pass on a message or description, raise an error.

    Returns:
        The result of a job; None if it goes on.
    """
    if kind == "message":
        channel.send(value)
    elif kind == "description":
        channel.set_description(value)
    elif kind == "error":
        raise value
    else:
        return value
    return None


def check_numbers(executor: object, name: str, **least: int) -> None:
    """Raise ConfigError for a setting of an executor that is no number of at least so much."""
    for setting, smallest in least.items():
        value = getattr(executor, setting)
        if not isinstance(value, int) or value < smallest:
            raise ConfigError(
                f"executor {name}: '{setting}' = {value!r}: must be a number of at least {smallest}"
            )


class Executor(Protocol):
    """Carries out jobs; the parameters of its class are what `--executor-args` sets."""

    def workers(self, gpus: int | None) -> int:
        """Return how many jobs run at the same time; with one, a run is not split into smaller jobs.

        Args:
            gpus: as `Job.gpus`.

        Raises:
            ConfigError: there are not as many GPUs.
            MissingDependencyError: a package that it needs is not installed.
        """

    def prepare(self, warm_up: Callable[[], None], gpus: int | None) -> None:
        """Start workers before their jobs are known, where that saves time.

        Args:
            warm_up: a function of a module, such as one that imports; called at most once per worker, where
                that runs. What it raises is left to the jobs.
            gpus: as `Job.gpus` of the jobs to come, as far as that is known.
        """

    def close(self) -> None:
        """End workers that were prepared and have had no job."""

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (index of the job, its result) as jobs end.

        Args:
            make_worker: a function of a module; called once per worker, where that runs.
            jobs: in any order of execution. What a job raises is raised here.
            channel: receives what the jobs send, in this process.
            folder: for files of the executor's own, which workers on other machines see as well; what is in
                it after the process was killed is taken up by the next call.
        """


EXECUTORS: Registry[type[Executor]] = Registry("executor")
"""Name → class; its parameters are the arguments."""


def open_executor(name: str, arguments: Mapping[str, Any]) -> Executor:
    """Make an executor.

    Raises:
        ConfigError: no such executor, or arguments that it does not take.
    """
    kind: Any = EXECUTORS.get_or_raise(name, "'executor'")
    # A class without a constructor has that of a protocol, which takes anything.
    known = {} if kind.__init__ is Executor.__init__ else signature(kind).parameters
    for given in arguments:
        if given not in known:
            raise ConfigError(f"executor {name} takes no argument '{given}'{nearest(given, known)}")
    for missing in (each for each in known.values() if each.default is each.empty):
        if missing.name not in arguments:
            raise ConfigError(f"executor {name} needs an argument: --executor-args {missing.name}=…")
    executor: Executor = kind(**arguments)
    return executor

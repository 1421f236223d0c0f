"""The interface of executors, and their registry."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from evalsuite.foundation.registry import Registry

Job = TypeVar("Job")
Result = TypeVar("Result")


class Progress(Protocol):
    """The progress bar that jobs report to."""

    def update(self, n: int) -> object:
        """Add finished units of work; they may be negative to correct an earlier count."""

    def set_description(self, desc: str) -> object:
        """Name what runs now."""


class Executor(Protocol):
    """Carries out jobs."""

    def map(
        self, function: Callable[[Job, Progress], Result], jobs: Sequence[Job], progress: Progress
    ) -> Iterator[Result]:
        """Yield `function(job, progress)` for every job, in their order.

        Args:
            function: a function of a module; what it raises is raised here.
            jobs: values that can be pickled; `str` names them on the progress bar.
            progress: of all jobs; an executor whose jobs run elsewhere reports each when it has ended.
        """


EXECUTORS: Registry[type[Executor]] = Registry("executor")
"""Name → class without arguments."""

"""Jobs one after the other in this process."""

from collections.abc import Callable, Iterator, Sequence

from evalsuite.executors.base import EXECUTORS, Job, Progress, Result


@EXECUTORS.register("local")
class LocalExecutor:
    """Runs jobs one after the other in this process; the next starts when the last one's result is taken."""

    def map(
        self, function: Callable[[Job, Progress], Result], jobs: Sequence[Job], progress: Progress
    ) -> Iterator[Result]:
        """Yield the results, as `Executor.map`."""
        for number, job in enumerate(jobs, 1):
            progress.set_description(f"{job} ({number}/{len(jobs)})")
            yield function(job, progress)

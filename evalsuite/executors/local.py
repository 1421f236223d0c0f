"""Jobs one after the other in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.executors.base import EXECUTORS, Channel, Job, Worker


@EXECUTORS.register("local")
@dataclass(frozen=True)
class LocalExecutor:
    """Runs jobs one after the other in this process; the next starts when the last one's result is taken."""

    def workers(self, gpus: int | None) -> int:
        """One; the job itself finds out whether there are GPUs."""
        return 1

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the results, as `Executor.map`."""
        with closing(make_worker()) as worker:
            for index, job in enumerate(jobs):
                channel.set_description(f"{job} ({index + 1}/{len(jobs)})")
                yield index, worker.run(job.prepare(), channel)

"""Which job a free worker gets: its own group first, so that it loads little; else where most is left."""

from collections import Counter
from collections.abc import Sequence

from evalsuite.executors.base import Job
from evalsuite.foundation import EvalsuiteError


class JobQueue:
    """Jobs that have not been handed out.

    Args:
        jobs: all of them; the queue gives their indices.
        retries: workers that a job may lose.
    """

    def __init__(self, jobs: Sequence[Job], retries: int = 0) -> None:
        self._jobs, self._retries = jobs, retries
        self._lost: Counter[int] = Counter()
        # Of groups with equal costs the first goes first: the last ones have the smallest jobs.
        self._waiting: dict[str, list[int]] = {job.group: [] for job in jobs}
        self._holders: Counter[str] = Counter()
        for index in sorted(range(len(jobs)), key=lambda each: jobs[each].cost):
            self._waiting[jobs[index].group].append(index)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self, group: str | None = None) -> int | None:
        """Return the index of the next job of a worker, the longest of its group; None if there is none.

        Args:
            group: what the worker has loaded. When nothing of it is left, the worker joins the group with the
                largest remaining cost per worker.
        """
        if group is None or not self._waiting.get(group):
            left = {name: self._left(name) for name, waiting in self._waiting.items() if waiting}
            if not left:
                return None
            if group is not None:
                self._holders[group] -= 1
            group = max(left, key=lambda name: left[name])
            self._holders[group] += 1
        return self._waiting[group].pop()

    def put_back(self, index: int, reason: str) -> None:
        """Return the job of a worker that was lost.

        Args:
            reason: how the worker was lost.

        Raises:
            EvalsuiteError: it has lost more than `retries` workers.
        """
        self._lost[index] += 1
        if self._lost[index] > self._retries:
            raise EvalsuiteError(
                f"{self._jobs[index]}: {self._lost[index]} workers were lost while they ran it, the last one "
                f"{reason}; responses that arrived are kept, repeat the command to resume"
            )
        group = self._jobs[index].group
        self._holders[group] -= 1
        waiting = self._waiting[group]
        waiting.append(index)
        waiting.sort(key=lambda each: self._jobs[each].cost)

    def _left(self, group: str) -> float:
        cost = sum(self._jobs[index].cost for index in self._waiting[group])
        return cost / (1 + self._holders[group])


def shares(jobs: Sequence[Job], workers: int) -> list[list[int]]:
    """Return indices of jobs for each of `workers`, balanced by cost, groups kept together where possible.

    As if free workers took from a `JobQueue`; at most `workers` lists, none empty.
    """
    queue = JobQueue(jobs)
    ends = [0.0] * workers
    found: list[list[int]] = [[] for _ in range(workers)]
    while True:
        worker = min(range(workers), key=lambda each: ends[each])
        loaded = jobs[found[worker][-1]].group if found[worker] else None
        index = queue.take(loaded)
        if index is None:
            return [each for each in found if each]
        found[worker].append(index)
        ends[worker] += jobs[index].cost

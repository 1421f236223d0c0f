"""Which job goes where: groups stay together, long jobs go first, shares are balanced."""

import random
from itertools import pairwise

import pytest
from counting import CountJob

from evalsuite.executors.queue import JobQueue, shares


def test_a_worker_keeps_its_group_and_starts_with_the_longest() -> None:
    jobs = [CountJob("a1", 1, "a"), CountJob("b1", 9, "b"), CountJob("a2", 5, "a"), CountJob("b2", 2, "b")]
    queue = JobQueue(jobs, retries=1)
    assert queue.take() == 1  # b is the group with most cost
    assert queue.take() == 2  # b's remaining 2 are shared with its worker, so that a's 6 are more
    assert queue.take("a") == 0
    assert queue.take("b") == 3
    assert queue.take("b") is None
    assert len(queue) == 0


def test_an_idle_worker_joins_the_group_with_most_left() -> None:
    jobs = [CountJob(f"a{i}", 4, "a") for i in range(8)] + [CountJob("b", 4, "b")]
    queue = JobQueue(jobs, retries=1)
    first, second = queue.take(), queue.take()
    assert first is not None
    assert second is not None
    assert {jobs[first].group, jobs[second].group} == {"a"}
    queue.put_back(second, "by a test")
    assert len(queue) == 8


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_hold_every_job_once_and_are_balanced(workers: int) -> None:
    dice = random.Random(5)
    jobs = [CountJob(f"{g}{i}", dice.randint(1, 20), g) for g in "abcde" for i in range(20)]
    found = shares(jobs, workers)
    assert sorted(index for share in found for index in share) == list(range(len(jobs)))
    costs = [sum(jobs[index].cost for index in share) for share in found]
    assert max(costs) - min(costs) <= max(job.cost for job in jobs)
    switches = [sum(jobs[a].group != jobs[b].group for a, b in pairwise(s)) for s in found]
    assert sum(switches) + len(found) <= len("abcde") + 2 * workers


def test_fewer_jobs_than_workers_make_no_empty_share() -> None:
    assert shares([CountJob("a", 3)], 4) == [[0]]

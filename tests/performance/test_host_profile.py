"""Time is attributed to the phase that spends it, not to those around it."""

import threading
from collections.abc import Iterator

import pytest

from tests.performance import host_profile
from tests.performance.host_profile import HostProfile


class Work:
    """Spends the time of a clock of its own."""

    now = 0.0

    def outer(self) -> None:
        Work.now += 2
        self.inner()

    def inner(self) -> None:
        Work.now += 5

    def steps(self) -> Iterator[int]:
        for number in range(3):
            self.inner()
            yield number


def test_phases_exclude_what_they_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_profile.time, "perf_counter", lambda: Work.now)
    profile, work = HostProfile(), Work()
    before = Work.inner
    with profile.attribute({"out": [(Work, "outer"), (Work, "steps")], "in": [(Work, "inner")]}):
        work.outer()
        for _ in work.steps():
            Work.now += 3
        thread = threading.Thread(target=work.inner)
        thread.start()
        thread.join()
    assert Work.inner is before
    assert profile.seconds == {"out": 2, "in": 20}
    assert profile.aside == {"in": 5}
    assert [line.split() for line in profile.table(40).splitlines()] == [
        ["in", "20.000", "s", "50.0%"],
        ["out", "2.000", "s", "5.0%"],
        ["elsewhere", "18.000", "s", "45.0%"],
        ["in", "5.000", "s", "in", "another", "thread"],
    ]

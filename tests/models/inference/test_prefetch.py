"""Items that a thread computes ahead arrive in order, with errors in their place, and the thread ends."""

import threading
from collections.abc import Iterator

import pytest

from evalsuite.models.inference.prefetch import prefetch


def counting(reached: list[int], stop: int) -> Iterator[int]:
    for number in range(stop):
        reached.append(number)
        yield number


def num_threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def test_items_arrive_in_order_and_are_computed_ahead() -> None:
    reached: list[int] = []
    other = threading.Event()
    items = prefetch((other.set() or number for number in counting(reached, 5)), depth=2)
    assert next(items) == 0
    assert other.wait(5)
    assert list(items) == [1, 2, 3, 4]
    assert reached == list(range(5))
    assert num_threads() == 0


def test_error_is_raised_in_its_place() -> None:
    items = prefetch(10 // (3 - number) for number in range(5))
    assert [next(items) for _ in range(3)] == [3, 5, 10]
    with pytest.raises(ZeroDivisionError):
        next(items)
    assert num_threads() == 0


def test_thread_ends_with_a_consumer_that_gives_up() -> None:
    reached: list[int] = []
    items = prefetch(counting(reached, 1000), depth=3)
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert num_threads() == 0
    assert len(reached) < 10

"""Calls in a process of their own give what they would give here, and end with the process that made them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate, phases
from evalsuite.evaluation.processes.background import Background
from evalsuite.foundation import CheckpointError, DataError, RunFolderError
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly


class OddError(Exception):
    """Cannot be pickled: its arguments are not those of its class."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@contextmanager
def opened() -> Iterator[list[int]]:
    yield []


class Slow:
    """Takes a while to release what it holds."""

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def __enter__(self) -> list[int]:
        return []

    def __exit__(self, *_: object) -> None:
        (self._marks / "releasing").touch()
        time.sleep(0.3)
        (self._marks / "released").touch()


def append(target: list[int], number: int) -> tuple[int, list[int]]:
    target.append(number)
    return os.getpid(), list(target)


def fail(target: list[int], kind: str) -> None:
    errors = {"data": DataError("a.jsonl: empty"), "os": FileNotFoundError(2, "No such file", "b")}
    raise errors.get(kind, OddError(1, 2))


def die(target: list[int]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work(target: list[int], marks: str) -> None:
    try:
        Path(marks, "started").touch()
        time.sleep(60)
    finally:
        Path(marks, "released").touch()


def wait_for(mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.01)


@pytest.fixture
def background() -> Iterator[Background]:
    with Background(opened) as found:
        yield found


def test_results_are_taken_in_any_order_from_one_object(background: Background) -> None:
    first, _, third = (background.start(append, number) for number in (3, 5, 7))
    process, numbers = third()
    assert (numbers, first()[1]) == ([3, 5, 7], [3])
    assert process != os.getpid()


@pytest.mark.parametrize("kind", ["data", "os"])
def test_errors_keep_their_class_and_message(background: Background, kind: str) -> None:
    failed = background.start(fail, kind)
    with pytest.raises(DataError if kind == "data" else FileNotFoundError) as caught:
        failed()
    assert str(caught.value) == ("a.jsonl: empty" if kind == "data" else "[Errno 2] No such file: 'b'")
    assert background.start(append, 1)()[1] == [1]


def test_an_error_that_cannot_travel_keeps_its_traceback(background: Background) -> None:
    with pytest.raises(RuntimeError, match="1 and 2") as caught:
        background.start(fail, "odd")()
    assert "in fail" in caught.value.__notes__[0]


def test_a_killed_process_is_named(background: Background) -> None:
    killed = background.start(die)
    background.start(append, 1)
    with pytest.raises(RunFolderError, match=r"ended with exit code -9.*fewer --workers"):
        killed()


def test_a_call_that_is_given_up_releases_what_it_holds(tmp_path: Path) -> None:
    background = Background(opened)
    background.start(work, str(tmp_path))
    wait_for(tmp_path / "started")
    background.close()
    assert (tmp_path / "released").exists()
    assert not background._process.is_alive()


@pytest.mark.parametrize("given_up", [False, True])
def test_nothing_interrupts_the_release(tmp_path: Path, given_up: bool) -> None:
    background = Background(partial(Slow, tmp_path))
    if given_up:
        (tmp_path / "call").mkdir()
        background.start(work, str(tmp_path / "call"))
        wait_for(tmp_path / "call" / "started")
        assert background._process.pid is not None
        os.kill(background._process.pid, signal.SIGTERM)
    else:
        background._pipe.close()
    wait_for(tmp_path / "releasing")
    background._process.terminate()
    background._process.join()
    assert (tmp_path / "released").exists()
    background.close()


def test_it_ends_with_the_process_that_made_it() -> None:
    code = (
        "import os, sys\n"
        "from contextlib import nullcontext\n"
        "from evalsuite.evaluation.processes.background import Background\n"
        "background = Background(nullcontext)\n"
        "print(background._process.pid, flush=True)\n"
        "{end}\n"
    )
    for end in ("", "os.kill(os.getpid(), 9)"):
        command = [sys.executable, "-c", code.format(end=end)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        process = int(done.stdout)
        for _ in range(1000):
            if not Path(f"/proc/{process}").exists():
                break
            time.sleep(0.01)
        else:
            pytest.fail("it is still running")


@pytest.mark.long
def test_a_process_of_its_own_builds_and_scores_alike(
    tiny: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        monkeypatch.setattr(phases, "pays_off", lambda config, name=name: name == "there")
        summary = evaluate_quietly(suite=suite, checkpoints=[str(tiny)], out=tmp_path / name)
        assert (summary.missing, len(summary.scores) > 0) == (0, True)
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.*"))
    assert {path.suffix for path in files} >= {".jsonl", ".parquet"}
    for file in files:
        if file.suffix in (".jsonl", ".parquet"):
            assert (tmp_path / "there" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()
    here, there = (read_manifest(tmp_path / name) for name in ("here", "there"))
    assert replace(here, created="") == replace(there, created="")


@pytest.mark.long
def test_an_error_of_a_process_of_its_own_is_the_runs_own(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "pays_off", lambda config: True)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("[]")
    config = RunConfig(
        suite=suite,
        checkpoints=[str(tmp_path / "damaged")],
        out=tmp_path / "run",
        phases=("build",),
        quiet=True,
    )
    with pytest.raises(CheckpointError, match="expected a JSON object"):
        evaluate(config)
    assert not (tmp_path / "run" / "run.json").exists()

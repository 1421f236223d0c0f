"""Local workers that start before their jobs are known: used if they fit, and never left behind."""

import atexit
import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from counting import CountJob, CountWorker, Messages, note_process

from evalsuite.executors import Channel, LocalExecutor
from evalsuite.executors.gpus import likely_gpus

JOBS = [CountJob(f"{group}{count}", count, group) for group in "ab" for count in (3, 4)]


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def noted(folder: Path, count: int) -> set[int]:
    """Return the processes that have warmed up, once there are so many."""
    end = time.monotonic() + 60
    while len(found := {int(path.name) for path in folder.iterdir()}) < count:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def lives(process: int) -> bool:
    """Whether there is such a process, other than as an exit code that nobody has read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Traces:
    """Leaves a file for the objects between two collections, for its handler, and when it is freed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, prepared: Any, channel: Channel) -> dict[str, Any]:
        (self.folder / f"objects-{gc.get_threshold()[0]}").touch()
        atexit.register((self.folder / "handler").touch)
        # Freed with the module, by Python itself.
        sys.modules["freed"] = self  # type: ignore[assignment]
        return {}

    def close(self) -> None:
        (self.folder / "closed").touch()

    def __del__(self) -> None:
        os.close(os.open(f"{self.folder}/freed", os.O_CREAT))


def test_a_process_collects_rarely_and_ends_quickly(tmp_path: Path) -> None:
    """It imports torch, whose objects take a second to traverse or to free."""
    executor = LocalExecutor(num_workers=2)
    assert len(dict(executor.map(partial(Traces, tmp_path), JOBS[:1], Messages(), tmp_path))) == 1
    executor.close()
    assert {path.name for path in tmp_path.iterdir()} == {"objects-10000", "closed", "handler"}


@pytest.mark.parametrize("fail", [False, True])
def test_they_run_the_jobs_though_the_warm_up_fails(tmp_path: Path, fail: bool) -> None:
    executor = LocalExecutor(num_workers=2)
    executor.prepare(partial(note_process, tmp_path, fail), None)
    prepared = noted(tmp_path, 2)
    found = dict(executor.map(CountWorker, JOBS, Messages(), tmp_path))
    assert [found[index]["sum"] for index in range(4)] == [6, 10, 6, 10]
    assert {each["process"] for each in found.values()} == prepared
    executor.close()
    assert not any(map(lives, prepared))


def test_one_that_was_killed_is_replaced(tmp_path: Path) -> None:
    executor = LocalExecutor(num_workers=2)
    executor.prepare(partial(note_process, tmp_path), 0)
    killed, other = noted(tmp_path, 2)
    os.kill(killed, signal.SIGKILL)
    found = dict(executor.map(CountWorker, JOBS, Messages(), tmp_path))
    assert sorted(found) == [0, 1, 2, 3]
    assert killed not in {each["process"] for each in found.values()}
    executor.close()
    assert not lives(other)


def test_those_with_other_gpus_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.executors.local.likely_gpus", lambda: ("0", "1"))
    executor = LocalExecutor(num_workers=2)
    executor.prepare(partial(note_process, tmp_path), None)
    prepared = noted(tmp_path, 2)
    results = executor.map(CountWorker, JOBS, Messages(), tmp_path)
    first = next(results)[1]
    assert not any(map(lives, prepared))
    assert {each["gpus"] for each in [first, *(result for _, result in results)]} == {""}


def test_they_get_gpus_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab,7")
    executor = LocalExecutor(num_workers=2)
    executor.prepare(partial(note_process, tmp_path), None)
    prepared = noted(tmp_path, 2)
    jobs = [CountJob("a", 3, "a", gpus=1), CountJob("b", 3, "b", gpus=1)]
    found = [result for _, result in executor.map(CountWorker, jobs, Messages(), tmp_path)]
    assert {each["process"] for each in found} == prepared
    assert {each["gpus"] for each in found} == {"5", "GPU-ab"}


def test_too_few_gpus_start_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    executor = LocalExecutor(num_workers=2)
    executor.prepare(partial(note_process, tmp_path), None)
    assert not executor._prepared


def test_one_worker_warms_up_here(tmp_path: Path) -> None:
    LocalExecutor().prepare(partial(note_process, tmp_path, True), None)
    assert noted(tmp_path, 1) == {os.getpid()}


DRIVER = """
import sys, time
from functools import partial
from pathlib import Path
from counting import note_process
from evalsuite.executors import LocalExecutor
if __name__ == "__main__":
    LocalExecutor(num_workers=2).prepare(partial(note_process, Path(sys.argv[1])), 0)
    time.sleep(60)
"""


def test_they_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    script, folder = tmp_path / "driver.py", tmp_path / "noted"
    script.write_text(DRIVER)
    folder.mkdir()
    driver = subprocess.Popen([sys.executable, script, folder])
    prepared = noted(folder, 2)
    driver.kill()
    driver.wait()
    end = time.monotonic() + 20
    while any(map(lives, prepared)):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_gpus_are_guessed_from_the_environment_or_their_device_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert likely_gpus(tmp_path) == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,MIG-1")
    assert likely_gpus(tmp_path) == ("3", "MIG-1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert likely_gpus(tmp_path) == ("0", "1")

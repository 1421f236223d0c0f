"""The processes of a study: dependencies, failures, GPUs, other drivers, and the end of a call's time."""

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from evalsuite.executors import local_process
from evalsuite.executors.gpus import VISIBLE, visible_gpus
from evalsuite.executors.local_process import WorkerProcess
from evalsuite.foundation import ConfigError, RunFolderError, files
from evalsuite.foundation.files import locked
from evalsuite.reports.studies.training_choices import processes
from evalsuite.reports.studies.training_choices.__main__ import main
from evalsuite.reports.studies.training_choices.design import DESIGNS
from evalsuite.reports.studies.training_choices.jobs import Job, Setting
from evalsuite.reports.studies.training_choices.processes import HELD, _Queue, carry_out, run_study
from tests.reports.studies.training_choices.study_worker import KindWorker


def _setting(out: Path) -> Setting:
    return Setting(study="r", teacher="t", requests=out, out=out)


def _job(out: Path, name: str, *needs: str) -> Job:
    return Job(name, None, tuple(out / each for each in needs), out / name)


def test_jobs_start_as_soon_as_what_they_need_exists_and_finished_ones_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.2)
    (tmp_path / "finished").touch()
    jobs = [_job(tmp_path, "late", "early"), _job(tmp_path, "finished"), _job(tmp_path, "early")]
    found = run_study(_setting(tmp_path), jobs, workers=2, seconds=60, worker=KindWorker)
    assert sorted(found) == [("early", "", 0.5, None), ("late", "", 0.5, None)]


def test_a_failed_job_and_a_lost_process_stop_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_process, "END_SECONDS", 1.0)
    jobs = [_job(tmp_path, name) for name in ("fail-one", "die-two", "hang-too", "three", "four")]
    jobs.append(_job(tmp_path, "never", "fail-one"))
    found = {
        each.name: each.error
        for each in run_study(_setting(tmp_path), jobs, workers=1, seconds=60, worker=KindWorker)
    }
    assert found == {
        "fail-one": "a reason",
        "die-two": "its process ended with exit code 3",
        "hang-too": "its process ended with a hang at its end",
        "three": "",
        "four": "",
    }


def test_when_the_time_is_over_running_jobs_are_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    jobs = [_job(tmp_path, "sleep-one"), _job(tmp_path, "later")]
    assert list(run_study(_setting(tmp_path), jobs, workers=1, seconds=3, worker=KindWorker)) == []
    assert time.monotonic() - started < 50
    assert (tmp_path / "stopped").exists() == (tmp_path / "asleep").exists()
    assert not (tmp_path / "later").exists()


def test_each_process_sees_one_gpu_and_a_lost_one_is_replaced_on_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two `meet` jobs wait for each other, so the second runs in the process that replaces the lost one."""
    monkeypatch.setenv(VISIBLE, "GPU-5e,MIG-1f")
    jobs = [_job(tmp_path, name) for name in ("die-one", "meet-two", "meet-three")]
    gpus = visible_gpus()
    found = list(run_study(_setting(tmp_path), jobs, workers=2, seconds=60, gpus=gpus, worker=KindWorker))
    assert found[0] == ("die-one", "its process ended with exit code 3", 0.0, "GPU-5e")
    assert sorted(found[1:]) == [("meet-three", "", 0.5, "GPU-5e"), ("meet-two", "", 0.5, "MIG-1f")]
    assert (tmp_path / "arrived-meet-two").read_text() == "MIG-1f"
    assert (tmp_path / "arrived-meet-three").read_text() == "GPU-5e"


def test_processes_share_a_gpu_and_the_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    begin = WorkerProcess.begin

    def noted(process: WorkerProcess, make_worker: Any, threads: int, sharing: int) -> None:
        begun.append((process.devices, threads, sharing))
        begin(process, make_worker, threads, 1)

    monkeypatch.setattr(WorkerProcess, "begin", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    jobs = [_job(tmp_path, name) for name in ("meet-one", "meet-two")]
    found = run_study(_setting(tmp_path), jobs, workers=2, seconds=60, gpus=["0"], worker=KindWorker)
    assert len(list(found)) == 2
    assert begun == [("0", 4, 2), ("0", 4, 2)]


@pytest.mark.parametrize(
    ("given", "gpus"),
    [("1,3", ("1", "3")), (" MIG-a , GPU-b", ("MIG-a", "GPU-b")), ("2,-1,3", ("2",)), ("", ()), ("-1", ())],
)
def test_visible_gpus_are_entries_of_the_variable(
    given: str, gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, given)
    assert visible_gpus() == gpus


def test_jobs_of_another_driver_are_tried_again_unless_it_finishes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.3)
    jobs = [_job(tmp_path, "held-one"), _job(tmp_path, "lost-two"), _job(tmp_path, "late", "held-one")]
    found = run_study(_setting(tmp_path), jobs, workers=1, seconds=60, worker=KindWorker)
    assert list(found) == [("held-one", "", 0.5, None), ("late", "", 0.5, None)]


def test_jobs_of_other_drivers_come_after_those_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon they are tried again; among themselves, the one that was held longest ago comes first."""
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.0)
    queue, handed_out = _Queue([_job(tmp_path, name) for name in ("one", "two", "three")]), []
    for _ in range(6):
        job = queue.next()
        assert job is not None
        handed_out.append(job.name)
        queue.waiting.remove(job)
        queue.put_back(job)
    assert handed_out == ["one", "two", "three"] * 2


def _lock(setting: Setting, job: Job) -> AbstractContextManager[None]:
    return locked(setting.out / "locks" / job.name, wait=False)


def test_a_job_runs_under_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, job, ran = _setting(tmp_path), _job(tmp_path, "one"), []

    def run_job(job: Job, setting: Setting) -> None:
        with pytest.raises(RunFolderError), _lock(setting, job):
            pytest.fail("the lock is free while the job runs")
        ran.append(job.name)
        if len(ran) == 1:
            raise ConfigError("a reason")
        job.done.touch()

    monkeypatch.setattr(processes, "run_job", run_job)
    monkeypatch.setattr(files, "GRACE", 0.0)
    with _lock(setting, job):
        assert carry_out(job, setting) == HELD
    assert ran == []
    assert [carry_out(job, setting) for _ in range(3)] == ["a reason", "", HELD]
    assert ran == ["one", "one"]


def test_errors_of_the_command_are_no_verdict_of_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--teacher", "t", "--requests", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["gap-study-smolm2", *given]) == ConfigError.exit_code
    design = tmp_path / "design.yaml"
    design.write_text(
        (DESIGNS / "gap-study-smollm2.yaml").read_text().replace("recipe: gap-study", "recipe: gap-stud")
    )
    assert main([str(design), *given]) == ConfigError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert "did you mean 'gap-study-smollm2'" in lines[0]
    assert "unknown recipe 'gap-stud-smollm2'" in lines[1]

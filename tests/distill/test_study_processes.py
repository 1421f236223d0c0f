"""The processes of a study: dependencies, failures, lost processes, and the end of a call's time."""

import time
from pathlib import Path

from evalsuite.study import Job, Setting, run_study
from tests.distill.study_worker import work


def _setting(out: Path) -> Setting:
    return Setting(recipe="r", teacher="t", requests=out, out=out)


def _job(out: Path, name: str, *needs: str) -> Job:
    return Job(name, None, tuple(out / each for each in needs), out / name)


def test_jobs_wait_for_what_they_need_and_finished_ones_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "finished").touch()
    jobs = [_job(tmp_path, "late", "early"), _job(tmp_path, "finished"), _job(tmp_path, "early")]
    found = run_study(_setting(tmp_path), jobs, workers=2, seconds=60, work=work)
    assert list(found) == [("early", "", 0.5), ("late", "", 0.5)]


def test_a_failed_job_and_a_lost_process_stop_no_other(tmp_path: Path) -> None:
    jobs = [_job(tmp_path, name) for name in ("fail-one", "die-two", "three", "four")]
    jobs.append(_job(tmp_path, "never", "fail-one"))
    found = {
        name: error
        for name, error, _ in run_study(_setting(tmp_path), jobs, workers=1, seconds=60, work=work)
    }
    assert found == {
        "fail-one": "a reason",
        "die-two": "its process ended with code 3",
        "three": "",
        "four": "",
    }


def test_when_the_time_is_over_running_jobs_are_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    jobs = [_job(tmp_path, "sleep-one"), _job(tmp_path, "later")]
    assert list(run_study(_setting(tmp_path), jobs, workers=1, seconds=5, work=work)) == []
    assert time.monotonic() - started < 50
    assert (tmp_path / "stopped").exists() == (tmp_path / "asleep").exists()
    assert not (tmp_path / "later").exists()

"""Every executor delivers every message and result, survives lost workers, and passes errors on."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import CountJob, CountWorker, Messages

from evalsuite.executors import EXECUTORS, Executor, LocalExecutor, open_executor
from evalsuite.executors.gpus import share_memory
from evalsuite.foundation import ConfigError, DataError, EvalsuiteError

PARALLEL: dict[str, tuple[str, dict[str, Any]]] = {
    "ray": ("ray", {"num_workers": 2, "retries": 1}),
    "slurm": ("slurm", {"num_workers": 2, "cluster": "local", "gpus": 0, "retries": 1}),
    "local": ("local", {"num_workers": 2, "retries": 1}),
}


@pytest.fixture(params=[pytest.param("ray", marks=pytest.mark.long), "slurm", "local"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor with two workers in other processes."""
    package = pytest.importorskip({"slurm": "submitit", "local": "multiprocessing"}.get(request.param, "ray"))
    name, arguments = PARALLEL[request.param]
    yield open_executor(name, arguments)
    if name == "ray":
        package.shutdown()


def jobs(tmp_path: Path, **options: Any) -> list[CountJob]:
    """Six jobs of two groups; the fourth has these options."""
    found = [CountJob(f"{group}{count}", count, group) for group in "ab" for count in (3, 4, 5)]
    found[3] = CountJob("special", 6, "b", **options)
    return found


def test_results_and_messages_arrive_once_though_a_worker_is_killed(
    executor: Executor, tmp_path: Path
) -> None:
    work, messages = jobs(tmp_path, killed=tmp_path / "killed"), Messages()
    found = dict(executor.map(CountWorker, work, messages, tmp_path / "files"))
    assert sorted(found) == list(range(6))
    assert [found[index]["sum"] for index in range(6)] == [sum(range(job.count + 1)) for job in work]
    for job in work:
        once = list(range(1, job.count + 1))
        sent = messages.numbers(job.name)
        assert sent == once if job.name != "special" else sent[-len(once) :] == once
    assert (tmp_path / "killed").exists()
    assert len(work[3].prepared) == 2, "what is left to do is prepared again"
    assert executor.workers(0) == 2


def test_errors_reach_the_caller(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="special: not countable"):
        list(executor.map(CountWorker, jobs(tmp_path, error=True), Messages(), tmp_path / "files"))


def test_a_job_that_kills_every_worker_ends_the_run(executor: Executor, tmp_path: Path) -> None:
    work = [CountJob("fatal", 6, killed=tmp_path / "killed", always=True)]
    with pytest.raises(EvalsuiteError, match=r"fatal: 2 (workers|SLURM jobs)"):
        list(executor.map(CountWorker, work, Messages(), tmp_path / "files"))


def test_local_runs_in_order(tmp_path: Path) -> None:
    work = jobs(tmp_path)
    found = list(open_executor("local", {}).map(CountWorker, work, Messages(), tmp_path / "files"))
    assert [index for index, _ in found] == list(range(6))
    assert found[-1][1]["loaded"] == 2


def test_what_a_killed_process_left_is_taken_up(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    from evalsuite.executors.spool import Spool

    left = tmp_path / "files" / "0"
    left.mkdir(parents=True)
    Spool(left / "messages.jsonl").send({"name": "old", "number": 1})
    (left / "slurm_job").write_text("1")
    messages = Messages()
    name, arguments = PARALLEL["slurm"]
    list(open_executor(name, arguments).map(CountWorker, [CountJob("a", 2)], messages, tmp_path / "files"))
    assert messages.numbers("old") == [1]
    assert messages.numbers("a") == [1, 2]
    assert not left.exists()


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("rya", {}, "did you mean 'ray'"),
        ("ray", {"adress": "auto"}, "did you mean 'address'"),
        ("ray", {"num_workers": 0}, "'num_workers' = 0"),
        ("ray", {"retries": None}, "'retries' = None"),
        ("slurm", {"cluster": "pbs"}, "'cluster' = 'pbs'"),
        ("local", {"num_worker": 2}, "did you mean 'num_workers'"),
        ("local", {"num_workers": 0}, "'num_workers' = 0"),
    ],
)
def test_bad_arguments_are_refused(name: str, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        open_executor(name, arguments)


@pytest.mark.long
def test_executors_need_two_methods_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inline(Executor):
        def workers(self, gpus: int | None) -> int:
            return 1

        def map(self, make_worker: Any, jobs: Any, channel: Any, folder: Path) -> Iterator[Any]:
            return ((index, make_worker().run(job.prepare(), channel)) for index, job in enumerate(jobs))

    monkeypatch.setattr(EXECUTORS, "get_or_raise", lambda name, key: Inline)
    for _ in range(2):
        executor = open_executor("inline", {})
        executor.prepare(int, None)
        executor.close()
    with pytest.raises(ConfigError, match="takes no argument 'speed'"):
        open_executor("inline", {"speed": 2})


def test_a_cluster_without_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = open_executor("ray", {"num_workers": 1})
    monkeypatch.setattr(type(executor), "_connect", lambda self: {"CPU": 1.0})
    with pytest.raises(ConfigError, match="the cluster has 1 CPU, 0 GPU; a worker needs 1 CPU and 2 GPU"):
        executor.workers(2)


def test_each_local_worker_gets_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-ab,5,7")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    executor = LocalExecutor(num_workers=2)
    assert executor._devices(None) == ["3", "GPU-ab"]
    assert executor._devices(2) == ["3,GPU-ab", "5,7"]
    assert executor._devices(0) == ["", ""]
    with pytest.raises(ConfigError, match="num_workers = 2 with 4 GPU each, and this process sees 4"):
        executor.workers(4)
    assert LocalExecutor().workers(4) == 1


def test_local_workers_share_gpus_if_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-ab,5")
    three, five, seven = (LocalExecutor(num_workers=each, workers_per_gpu=2) for each in (3, 5, 7))
    assert five._devices(None) == ["3", "GPU-ab", "5", "3", "GPU-ab"]
    assert LocalExecutor(num_workers=2, workers_per_gpu=2)._devices(2) == ["3,GPU-ab", "3,GPU-ab"]
    assert three._devices(0) == ["", "", ""]
    with pytest.raises(ConfigError, match=r"num_workers = 7 .*raise workers_per_gpu \(now 2\)"):
        seven.workers(None)
    with pytest.raises(ConfigError, match="'workers_per_gpu' = 0: must be a number of at least 1"):
        LocalExecutor(workers_per_gpu=0)


@pytest.mark.parametrize(("given", "expected"), [(None, "35.00"), ("20", "20")])
def test_processes_that_share_a_gpu_plan_with_a_part_of_its_memory(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (100 * 2**30, 140 * 2**30))
    monkeypatch.setenv("EVALSUITE_GPU_GIB", given or "")
    if given is None:
        monkeypatch.delenv("EVALSUITE_GPU_GIB")
    share_memory(4)
    assert os.environ["EVALSUITE_GPU_GIB"] == expected


def test_no_slurm_and_no_cluster_are_said(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    executor = open_executor("slurm", {})
    with pytest.raises(ConfigError, match="no SLURM on this machine"):
        list(executor.map(CountWorker, [CountJob("a", 1)], Messages(), tmp_path))

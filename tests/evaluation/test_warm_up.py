"""Workers get ready while a run begins, and a run that fails leaves none behind."""

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate, run
from evalsuite.evaluation.inference import engines
from evalsuite.evaluation.inference.warm_up import prepare_workers, warm_up
from evalsuite.evaluation.inference.worker import EngineChoice
from evalsuite.executors import LocalExecutor
from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.fingerprint import source_hash


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices on which something was allocated, on a machine with a GPU."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda size, device: found.append(device))
    return found


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == "cuda":
            thread.join()


@pytest.mark.parametrize(("device", "expected"), [("auto", ["cuda"]), ("cuda:1", ["cuda:1"]), ("cpu", [])])
def test_cuda_starts_where_inference_runs(started: list[str], device: str, expected: list[str]) -> None:
    warm_up("torch", device)
    join()
    assert started == expected
    assert "evalsuite.models.inference.torch.engine" in sys.modules


def test_the_source_of_a_decoder_is_hashed_meanwhile(
    make_llama: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    engine = EngineChoice(engine="torch", device="cpu").open(str(make_llama(tmp_path / "tiny", 0)))
    source_hash.cache_clear()
    warm_up("torch", "cpu")
    before = source_hash.cache_info().misses
    assert engine.fingerprint
    assert source_hash.cache_info().misses == before > 0


def test_a_gpu_that_does_not_start_is_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int, device: str) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", fail)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    warm_up("torch", "auto")
    join()
    assert not failed


def test_nothing_starts_for_an_engine_with_processes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(LocalExecutor, "prepare", lambda self, warm_up, gpus: calls.append(gpus))
    for engine, device in (("vllm", "auto"), ("torch", "cpu"), ("transformers", "auto")):
        prepare_workers(
            RunConfig(out="run", engine=engine, device=device, phases=("infer",)), LocalExecutor()
        )
    assert calls == [0, None]


class StoppedError(Exception):
    """Ends a run before it builds."""


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({}, ["build", "prepare", "check"]),
        ({"engine": "transformers"}, ["build", "prepare", "check"]),
        ({"engine": "vllm"}, ["prepare", "check", "build"]),
        ({"engine_args": {"batch_size": 3}}, ["prepare", "check", "build"]),
        ({"phases": ("build",)}, ["build"]),
    ],
)
def test_requests_are_built_while_an_engine_is_imported_that_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], order: list[str]
) -> None:
    notes: list[str] = []

    def end() -> None:
        raise StoppedError

    def start(function: Any, *_: object) -> Any:
        notes.append(function.__name__)
        return end

    monkeypatch.setattr(run.phases, "open_harnesses", lambda config: nullcontext((start, False)))
    monkeypatch.setattr(run, "prepare_workers", lambda *_: notes.append("prepare"))
    monkeypatch.setattr(engines, "check_servable", lambda *_: notes.append("check"))
    with pytest.raises(StoppedError):
        evaluate(RunConfig(suite="pocket", teacher="pocket", out=tmp_path / "run", **settings))
    assert notes == order


def test_a_run_that_fails_before_inference_ends_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[Any] = []
    prepare = LocalExecutor.prepare

    def noted(self: LocalExecutor, *arguments: Any) -> None:
        prepare(self, *arguments)
        processes.extend(self._prepared)

    monkeypatch.setattr(LocalExecutor, "prepare", noted)
    config = RunConfig(
        suite="pocket",
        teacher="pocket",
        out=tmp_path / "run",
        executor_args={"num_workers": 2},
        engine_args={"batch_size": 3},
        device="cpu",
    )
    with pytest.raises(ConfigError, match="batch_size"):
        evaluate(config)
    assert len(processes) == 2
    assert [each.how_it_ended() for each in processes] == ["with exit code -15"] * 2

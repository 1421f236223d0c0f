"""A stage's kernels are compiled before its first step; recording and compiling are stand-ins here."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.distill import distill
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.training import kernel_compilation
from evalsuite.distill.training.kernel_compilation import KernelCompilation
from evalsuite.foundation import ConfigError, MissingDependencyError, read_jsonl
from evalsuite.models.ops.tuning import compile_ahead
from evalsuite.models.ops.tuning.compile_ahead import CompileWorkers, Launch

CPU = torch.device("cpu")
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


def test_on_a_cpu_nothing_is_tried() -> None:
    compilation = KernelCompilation(CPU, "auto")
    compilation.start()
    compilation.import_kernels()
    compilation.compile(lambda: pytest.fail("no kernels to record"), lambda: pytest.fail("no need to wait"))
    compilation.save_timings()
    compilation.close()


def test_files_of_kernels_need_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"configs\.json: Triton kernels run on CUDA devices, not cpu"):
        KernelCompilation(CPU, "auto", configs=tmp_path / "configs.json")
    with pytest.raises(ConfigError, match=r"new\.json"):
        KernelCompilation(CPU, "auto", autotune=tmp_path / "new.json")
    with pytest.raises(MissingDependencyError, match="kernels: triton"):
        KernelCompilation(CPU, "triton")


@pytest.mark.parametrize(("kernels", "expected"), [(0, "threads 0"), (3, "threads 3"), (30, "workers 30")])
def test_few_kernels_need_no_workers_and_failures_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kernels: int, expected: str
) -> None:
    """As where CUDA did not start in a worker: each kernel then takes seconds in the first step."""
    launches = [Launch("module", str(number), "{}") for number in range(kernels)]
    failed = {each.name: "RuntimeError: no CUDA" for each in launches[1:]}
    seen: list[str] = []

    class Workers:
        def compile(self, launches: list[Launch], *, quiet: bool) -> dict[str, str]:
            seen.append(f"workers {len(launches)}")
            return failed

        def close(self) -> None:
            seen.append("closed")

    @contextmanager
    def record_launches() -> Iterator[list[Launch]]:
        yield launches

    def in_threads(launches: list[Launch], *, quiet: bool) -> dict[str, str]:
        seen.append(f"threads {len(launches)}")
        return failed

    monkeypatch.setattr(kernel_compilation, "kernel_versions", lambda device: "triton")
    replaced: dict[str, Any] = {
        "record_launches": record_launches,
        "not_compiled": lambda launches: launches,
        "compile_in_threads": in_threads,
        "CompileWorkers": Workers,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(compile_ahead, name, value)
    compilation = KernelCompilation(CPU, "auto")
    compilation.compile(lambda: seen.append("trial"), lambda: seen.append("barrier"))
    closed = ["closed"] if "workers" in expected else []
    assert seen == ["trial", expected, *closed, "barrier"]
    why = "did not compile ahead, but where they are launched (1: RuntimeError: no CUDA)"
    assert caplog.messages == ([f"kernels: {kernels - 1} of {kernels} {why}"] if failed else [])


def test_sigterm_while_kernels_compile_saves_the_state(
    teacher_folder: Path,
    tmp_path: Path,
    small_recipe: Callable[..., Recipe],
    stage: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler of the second stage sleeps."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    recipe = small_recipe(teacher_folder, stages=[stage("align", "attention_output"), stage("kd", "kd")])
    asleep: list[float] = []

    def compile(self: KernelCompilation, work: Callable[[], object], barrier: Callable[[], None]) -> None:
        work()
        if len(list(read_jsonl(out / "metrics.jsonl"))) == 4:
            asleep.append(time.monotonic())
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            with CompileWorkers(1, SLEEPER) as workers:
                workers.compile([Launch("module", "kernel", "{}")], quiet=True)

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(KernelCompilation, "compile", compile)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            distill(recipe, out, quiet=True, device="cpu")
    assert time.monotonic() - asleep[0] < 60
    assert interrupt.value.args == (signal.SIGTERM,)
    assert not (out / "gated_deltanet").exists()
    distill(recipe, out, quiet=True, device="cpu")
    steps = [(row["stage"], row["step"]) for row in read_jsonl(out / "metrics.jsonl")]
    assert steps == [(name, step) for name in ("align", "kd") for step in range(4)]

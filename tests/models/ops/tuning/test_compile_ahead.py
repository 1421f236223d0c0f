"""Worker processes that compile kernels, with stand-ins for the compiler."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from evalsuite.models.ops.tuning import compile_ahead
from evalsuite.models.ops.tuning.compile_ahead import (
    CompileWorkers,
    Launch,
    compile_in_threads,
    has_compiled,
    not_compiled,
    record_launches,
)

ECHO = """
import os
from evalsuite.models.ops.tuning.compile_worker import main
def compile_one(name, **_):
    if name == "deadly":
        os._exit(1)
    return "PTXASError: spilled" if name == "bad" else ""
main(compile_one, imports=False)
"""
SLEEPER = """
import time
from evalsuite.models.ops.tuning.compile_worker import main
main(lambda **_: time.sleep(600), imports=False)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def command(program: str) -> Sequence[str]:
    return sys.executable, "-c", program


def launches(*names: str) -> list[Launch]:
    return [Launch("module", name, "{}", source=name) for name in names]


def test_every_kernel_is_compiled_and_failures_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with CompileWorkers(2, command(ECHO)) as workers:
        assert not has_compiled()
        wanted = launches("a", "bad", "c", "d")
        assert workers.compile(wanted) == {"bad": "PTXASError: spilled"}
        assert has_compiled()
        assert [launch.name for launch in not_compiled([*wanted, *launches("e")])] == ["bad", "e"]
        assert workers.compile(launches("e"), quiet=True) == {}


def test_kernels_compile_from_when_they_are_begun(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = f"""
from evalsuite.models.ops.tuning.compile_worker import main
def compile_one(name, **_):
    with open({str(log)!r}, "a") as file:
        print(name, file=file)
    return "PTXASError: spilled" if name == "bad" else ""
main(compile_one, imports=False)
"""
    first, bad, last = launches("a", "bad", "c")
    with CompileWorkers(1, command(program)) as workers:
        workers.begin(first)
        workers.begin(bad)
        started = time.monotonic()
        while not (log.exists() and len(log.read_text().split()) == 2):
            assert time.monotonic() - started < 60
            time.sleep(0.01)
        assert workers.compile([first, bad, last], quiet=True) == {"bad": "PTXASError: spilled"}
        assert workers.compile([first, last], quiet=True) == {}
    assert log.read_text().split() == ["a", "bad", "c"]
    assert not_compiled([first, bad, last]) == [bad]


def test_a_worker_that_ends_does_not_stop_the_others() -> None:
    with CompileWorkers(1, command(ECHO)) as workers:
        failed = workers.compile(launches("deadly", "a", "b"), quiet=True)
    assert set(failed) == {"deadly", "a", "b"}
    assert "has ended" in failed["a"]


def test_processes_of_one_host_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    wanted = launches(*map(str, range(10)))
    left = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with CompileWorkers(1, command(ECHO)) as workers:
            assert workers.compile(wanted, quiet=True) == {}
        left.append(len(not_compiled(wanted)))
    assert 0 < left[0] < 10
    assert left[1] == 0


def test_runs_of_one_host_have_no_more_processes_than_it_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    with CompileWorkers(command=command(ECHO)) as first, CompileWorkers(command=command(ECHO)) as second:
        assert [len(each._pipes) for each in (first, second)] == [3, 1]
        assert second.compile(launches("a", "b"), quiet=True) == {}
    with CompileWorkers(command=command(ECHO)) as third:
        assert len(third._pipes) == 3


def test_closing_ends_a_worker_in_the_middle_of_a_kernel() -> None:
    workers = CompileWorkers(1, command(SLEEPER))
    failed: dict[str, str] = {}
    compiling = threading.Thread(target=lambda: failed.update(workers.compile(launches("a"), quiet=True)))
    compiling.start()
    # By then the worker has been forked, and sleeps.
    time.sleep(1)
    started = time.monotonic()
    workers.close()
    compiling.join()
    assert time.monotonic() - started < 60
    assert "has ended" in failed["a"]
    assert workers._process.poll() is not None


def test_workers_end_with_the_process_that_started_them() -> None:
    program = f"""
import os
from evalsuite.models.ops.tuning.compile_ahead import CompileWorkers, Launch
workers = CompileWorkers(2, {command(ECHO)!r})
workers.compile([Launch("module", "a", "{{}}")], quiet=True)
os._exit(7)
"""
    # Waits until nobody holds its stderr any more, which workers inherit.
    ended = subprocess.run(command(program), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 7, ended.stderr


def test_a_few_kernels_are_compiled_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compile_kernel(name: str, **_: str) -> str:
        seen.append(name)
        return "PTXASError: spilled" if name == "bad" else ""

    monkeypatch.setattr(compile_ahead, "compile_kernel", compile_kernel)
    wanted = launches("a", "bad", "c")
    assert compile_in_threads(wanted, quiet=True) == {"bad": "PTXASError: spilled"}
    assert sorted(seen) == ["a", "bad", "c"]
    assert [launch.name for launch in not_compiled(wanted)] == ["bad"]
    compile_in_threads([])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_workers_start_cuda_although_they_are_forked() -> None:
    from fla.ops.kda import chunk_kda

    from evalsuite.models.ops.tuning import install

    install()
    gate, q, k, v = torch.randn(4, 1, 128, 2, 64, device="cuda", dtype=torch.bfloat16)
    inputs = [each.requires_grad_() for each in (q, k, v, -gate.float().exp(), q[..., 0].sigmoid())]
    with record_launches() as found:
        chunk_kda(*inputs)[0].sum().backward()
    assert len(found) > 5
    with CompileWorkers(4) as workers:
        assert workers.compile(found, quiet=True) == {}
    assert not_compiled(found) == []

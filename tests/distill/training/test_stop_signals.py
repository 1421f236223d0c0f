"""SIGTERM and Ctrl-C end a training process within ten seconds, whatever it is doing."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from evalsuite.distill.training import stop_signals
from evalsuite.distill.training.stop_signals import StopSignals
from evalsuite.models.ops.tuning.compile_ahead import CompileWorkers, Launch

PROGRAM = """
import hashlib, runpy, sys, time
module = runpy.run_path({path!r})
StopSignals = module["StopSignals"]
StopSignals._watch.__globals__["GRACE_SECONDS"] = 0.5
try:
    with StopSignals() as stop:
        print("ready", flush=True)
        {work}
except KeyboardInterrupt as interrupt:
    print("interrupted")
    sys.exit(128 + interrupt.args[0])
"""


def run(work: str, number: int) -> tuple[int, str, float]:
    """Send a signal to a process that does `work`; return its exit code, output and seconds to its end."""
    program = PROGRAM.format(path=stop_signals.__file__, work=work)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    sent = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output, time.monotonic() - sent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_in_a_call_that_cannot_be_interrupted_is_ended(number: int) -> None:
    """Hashing runs in C without the interpreter's lock, as a compiler does; no Python handler runs."""
    code, output, seconds = run("hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", number)
    assert code == 128 + number
    assert "in the middle of a step" in output
    assert seconds > 0.4


def test_an_interrupted_process_does_not_wait_for_a_stalled_worker() -> None:
    """Processes of a pool are joined when the interpreter exits; this one sleeps."""
    program = f"""
import runpy, sys, time
from concurrent.futures import ProcessPoolExecutor
runpy.run_path({stop_signals.__file__!r})["end_process_after"](1.0, 143)
pool = ProcessPoolExecutor(1)
pool.submit(time.sleep, 600)
pool.shutdown(wait=False, cancel_futures=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert ended.returncode == 143


def test_a_state_that_is_being_written_is_completed() -> None:
    saving = "with stop.saving(): time.sleep(1.2); print('saved', flush=True)"
    work = f"exec({saving!r}); stop.raise_interrupt()"
    code, output, seconds = run(work, signal.SIGTERM)
    assert (code, output.split()) == (143, ["saved", "interrupted"])
    assert seconds > 0.9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_compiling_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The workers sleep within a stand-in for a compiler."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    timer = threading.Timer(0.3, os.kill, (os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    started = time.monotonic()
    with StopSignals() as stop, CompileWorkers(2, sleeper) as workers:
        timer.start()
        with pytest.raises(KeyboardInterrupt) as interrupt, stop.interruptible():
            workers.compile([Launch("module", "kernel", "{}")], quiet=True)
    assert interrupt.value.args == (number,)
    assert stop.requested
    assert time.monotonic() - started < 60
    assert workers._process.poll() is not None
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_a_step_waits_for_its_end() -> None:
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt), stop.interruptible():
            pytest.fail("a signal received before is not lost")


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with StopSignals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_processes_of_one_run_stop_together() -> None:
    with StopSignals(single=False) as stop:
        with stop.interruptible():
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter() -> None:
        with StopSignals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, before)]

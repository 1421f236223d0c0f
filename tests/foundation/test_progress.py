import os
import signal
import sys
import threading

import pytest

from evalsuite.foundation.progress import progress


def test_a_log_gets_a_bar_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules[progress.__module__], "LOG_SECONDS", 0.4)
    with progress(total=400, what="answers") as bar:
        now = bar.start_t + 0.6
        bar._time = lambda: now
        for number in range(400):
            bar.set_postfix(loss=number, refresh=False)
            bar.update()
            now += 0.002
    generated = capsys.readouterr().err
    assert "answers: 100%" in generated
    assert "loss=399" in generated
    assert 2 <= generated.count("\r") <= 6


def draws() -> bool:
    """Whether a bar can be made within five seconds."""
    thread = threading.Thread(target=lambda: progress(total=1, what="x", quiet=True).close(), daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_process_that_is_killed_while_it_draws_stops_nobody_else():
    lock = type(progress(total=1, what="x", quiet=True)).get_lock()
    child = os.fork()
    if not child:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert draws()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_process_that_is_forked_while_a_thread_draws_can_draw():
    lock = type(progress(total=1, what="x", quiet=True)).get_lock()
    held, enough = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            enough.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if draws() else 1)
    enough.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0

import sys
import time

from evalsuite.foundation.progress import progress


def test_a_log_gets_a_bar_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules[progress.__module__], "LOG_SECONDS", 0.4)
    with progress(total=400, what="answers") as bar:
        time.sleep(0.6)
        for number in range(400):
            bar.set_postfix(loss=number, refresh=False)
            bar.update()
            time.sleep(0.002)
    written = capsys.readouterr().err
    assert "answers: 100%" in written
    assert "loss=399" in written
    assert 2 <= written.count("\r") <= 6

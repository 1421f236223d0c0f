"""Trackers: what was logged can be read back, and a missing package is refused by name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.foundation.tracking import TRACKERS, check_tracker, open_tracker

LOGGED = [(1024, {"gla/loss": 2.5, "gla/lr": 0.001}), (2048, {"gla/loss": 1.25, "gla/lr": 0.0005})]


def test_tensorboard_events_hold_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    with open_tracker("tensorboard", tmp_path, project="p", run="r", config={}) as tracker:
        for step, values in LOGGED:
            tracker.log(values, step)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("gla/loss", "gla/lr"):
        found = [(event.step, make_ndarray(event.tensor_proto).item()) for event in events.Tensors(name)]
        assert [step for step, _ in found] == [step for step, _ in LOGGED]
        assert [value for _, value in found] == pytest.approx([values[name] for _, values in LOGGED])


SCRIPT = """
import json, sys
from pathlib import Path
from evalsuite.foundation.tracking import open_tracker

for step, values in json.loads(sys.argv[1]):  # each time the command is repeated
    with open_tracker("trackio", Path("."), project="evalsuite-test", run="r-0", config={"s": 3}) as tracker:
        tracker.log(values, step)
from trackio.sqlite_storage import SQLiteStorage

print(json.dumps(SQLiteStorage.get_logs("evalsuite-test", "r-0")))
"""


def test_trackio_stores_what_was_logged_and_continues_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio")
    # trackio reads its folder when it is imported.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    command = [sys.executable, "-c", SCRIPT, json.dumps(LOGGED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)  # and nothing of trackio's own
    assert [(row["step"], {key: row[key] for key in LOGGED[0][1]}) for row in rows] == LOGGED


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name].package, None)
    with pytest.raises(MissingDependencyError, match=rf"'{name}' is not installed.*evalsuite\[track\]"):
        check_tracker(name)


def test_an_unknown_tracker_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="track: unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        check_tracker("tensorbord")

"""Trackers follow a run: inference per checkpoint, then scores per benchmark as they are made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.run_paths import cells_of, read_built
from evalsuite.evaluation.score import _RunScorer
from evalsuite.foundation.tracking import TRACKERS, Tracker


def test_a_tracker_follows_a_run_while_it_goes(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished when a run breaks off was tracked; the repeated command tracks the rest."""
    logged: list[str] = []

    class Recorder(Tracker):
        package = "json"

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def log(self, values: Mapping[str, float], step: int) -> None:
            assert all(isinstance(value, float | int) for value in values.values())
            logged.extend(values)

        def finish(self) -> None:
            logged.append("finished")

    monkeypatch.setitem(TRACKERS._items, "recorder", Recorder)
    scored: list[tuple[str, str]] = []
    score_cell = _RunScorer.score_cell

    def break_off(self: Any, cell: Any, *rest: Any) -> int:
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append((cell.benchmark, cell.protocol))
        return score_cell(self, cell, *rest)

    monkeypatch.setattr(_RunScorer, "score_cell", break_off)
    config = RunConfig(
        suite=suite, checkpoints=["a", "b"], out=tmp_path / "run", track="recorder", quiet=True
    )
    with pytest.raises(KeyboardInterrupt):
        evaluate(config)
    inferred = [f"{label}/infer/{what}" for label in "ab" for what in ("responses", "responses_per_second")]
    assert logged[: len(inferred) + 1] == [*inferred, "finished"]
    found = {tuple(name.split("/")[:3]) for name in logged[len(inferred) + 1 : -1]}
    assert found == {(label, *place) for label in "ab" for place in scored}
    assert logged[-1] == "finished"
    monkeypatch.setattr(_RunScorer, "score_cell", score_cell)
    logged.clear()
    evaluate(config)
    assert not any("/infer/" in name for name in logged)
    assert len({name.rpartition("/")[0] for name in logged if "/" in name}) == 2 * len(
        {(row.benchmark, row.protocol) for row in cells_of(read_built(tmp_path / "run"))}
    )

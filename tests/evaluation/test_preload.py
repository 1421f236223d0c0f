"""An engine that is loaded while requests are built serves its checkpoint only, and hides no error."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.inference import engines
from evalsuite.evaluation.inference.worker import EngineChoice, PreloadedEngine
from evalsuite.foundation import CheckpointError
from evalsuite.reports.run import Checkpoint

REF = Checkpoint(label="a", path="a", weights_id="0" * 16, tokenizer="t")
CHOICE = EngineChoice(engine="torch")


class Engine:
    weights_id = "0" * 16
    closed = False

    def close(self) -> None:
        self.closed = True


def test_it_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(EngineChoice, "open", lambda self, path: engine)
    preloaded = PreloadedEngine("a", CHOICE)
    assert preloaded.take(REF, CHOICE) is engine
    assert preloaded.take(REF, CHOICE) is None
    assert not engine.closed


def test_it_is_closed_if_something_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(EngineChoice, "open", lambda self, path: engine)
    assert PreloadedEngine("a", CHOICE).take(REF, EngineChoice(engine="torch", dtype="float16")) is None
    assert engine.closed


def test_a_checkpoint_that_has_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.weights_id = "1" * 16
    monkeypatch.setattr(EngineChoice, "open", lambda self, path: engine)
    with pytest.raises(CheckpointError, match=r"a: weights are 1{16}, but .* were built for 0{16}"):
        PreloadedEngine("a", CHOICE).take(REF, CHOICE)


def test_an_error_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: EngineChoice, path: str) -> None:
        raise CheckpointError("a: damaged")

    monkeypatch.setattr(EngineChoice, "open", fail)
    assert PreloadedEngine("a", CHOICE).take(REF, CHOICE) is None


@pytest.mark.long
def test_a_run_loads_every_checkpoint_once(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = EngineChoice.open

    def counted(self: EngineChoice, path: str, label: str | None = None) -> Any:
        loads.append(path)
        return load(self, path, label)

    monkeypatch.setattr(EngineChoice, "open", counted)
    monkeypatch.setattr(engines, "resolve_device", lambda device, dtype: ("cuda", "float32"))
    config = RunConfig(
        suite=suite, checkpoints=["a", "b"], teacher="t", out=tmp_path / "run", workers=2, quiet=True
    )
    assert evaluate(config).missing == 0
    assert loads == ["t", "a", "b"]

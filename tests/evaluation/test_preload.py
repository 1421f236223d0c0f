"""An engine that is loaded while requests are built serves its checkpoint only, and hides no error."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.inference import engines
from evalsuite.evaluation.inference.worker import EngineChoice, PreloadedEngine
from evalsuite.evaluation.run_paths import CheckpointRef
from evalsuite.foundation import CheckpointError

REF = CheckpointRef(label="a", path="a", weights_id="0" * 16, tokenizer="t")
CHOICE = EngineChoice(engine="torch")


class Engine:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_it_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(EngineChoice, "load", lambda self, checkpoint: engine)
    preloaded = PreloadedEngine(REF, CHOICE)
    assert preloaded.take(REF, CHOICE) is engine
    assert preloaded.take(REF, CHOICE) is None
    assert not engine.closed


def test_it_is_closed_if_something_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(EngineChoice, "load", lambda self, checkpoint: engine)
    assert PreloadedEngine(REF, CHOICE).take(REF, EngineChoice(engine="torch", dtype="float16")) is None
    assert engine.closed


def test_an_error_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: EngineChoice, checkpoint: CheckpointRef) -> None:
        raise CheckpointError("a: damaged")

    monkeypatch.setattr(EngineChoice, "load", fail)
    assert PreloadedEngine(REF, CHOICE).take(REF, CHOICE) is None


@pytest.mark.long
def test_a_run_loads_every_checkpoint_once(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = EngineChoice.load

    def counted(self: EngineChoice, checkpoint: CheckpointRef) -> Any:
        loads.append(checkpoint.label)
        return load(self, checkpoint)

    monkeypatch.setattr(EngineChoice, "load", counted)
    monkeypatch.setattr(engines, "resolve_device", lambda device, dtype: ("cuda", "float32"))
    config = RunConfig(
        suite=suite, checkpoints=["a", "b"], teacher="t", out=tmp_path / "run", workers=2, quiet=True
    )
    assert evaluate(config).missing == 0
    assert loads == ["t", "a", "b"]

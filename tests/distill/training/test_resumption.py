"""States load on any number of processes; those that cannot be loaded are refused by name."""

import json
import os
import pickle
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from evalsuite.distill import Recipe, TrainingError, distill
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_state import Progress, TrainState
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.foundation import CheckpointError, read_jsonl
from evalsuite.models import build_student
from tests.distill.training.saved_states import num_states, read_state
from tests.distill.training.two_processes import finish, needs_loopback, start

Curve = list[tuple[int, float, float]]


def curve(out: Path) -> Curve:
    return [(row["tokens"], row["loss"], row["grad_norm"]) for row in read_jsonl(out / "metrics.jsonl")]


def assert_close(found: Curve, expected: Curve) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a == pytest.approx(b, rel=1e-4)


@pytest.fixture(scope="module")
def whole(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Recipe, Path]:
    """A recipe of two stages that saves after every step, and its run by one process without those saves."""
    torch.set_num_threads(1)
    options = {"batch_size": 2, "tokens": 512}
    stages = [stage("align", "attention_output", **options), stage("kd", "kd", **options)]
    recipe = small_recipe(teacher_folder, stages=stages)
    out = tmp_path_factory.mktemp("whole") / "out"
    distill(recipe, out, quiet=True, device="cpu")
    saves = CheckpointConfig(state_interval_seconds=0)
    return recipe.model_copy(update={"checkpoint": saves}), out


def saved_progress(out: Path) -> dict[str, Any]:
    """Progress of the last complete state."""
    path = out / "state" / f"{num_states(out / 'state'):06d}" / "state.json"
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:  # the next one has just replaced it
        return {}


def train(recipe: Recipe, out: Path, last_step: int | None, dies: int | None, rank: int) -> None:
    """Train; in the last stage, end all processes (or only that of rank `dies`) before step `last_step`."""
    step = TrainStep.__call__

    def stepping(self: Any, batch: Any, number: int) -> Any:
        if self._stage.name == "kd" and number == last_step and dies in (None, rank):
            while dies is None and saved_progress(out).get("step") != number:
                time.sleep(0.01)
            os._exit(9)
        return step(self, batch, number)

    TrainStep.__call__ = stepping  # type: ignore[method-assign]
    try:
        distill(recipe, out, quiet=True, device="cpu")
    except TrainingError as error:
        (out / f"error-{rank}").write_text(str(error))
        raise


@needs_loopback
@pytest.mark.parametrize(
    ("sharding", "world_sizes"), [("full", (2, 1)), pytest.param("none", (1, 2), marks=pytest.mark.long)]
)
def test_a_run_resumes_on_another_number_of_processes(
    whole: tuple[Recipe, Path], tmp_path: Path, sharding: str, world_sizes: tuple[int, int]
) -> None:
    """From sharded states to whole ones, and from one process to two, in the middle of a stage."""
    recipe, out = whole[0].model_copy(update={"sharding": sharding}), tmp_path / "out"
    first, second = world_sizes
    assert finish(start(partial(train, recipe, out, 2, None), first)) == [9] * first
    progress, tensors = read_state(out / "state")
    assert (progress.stage, progress.step) == (1, 2)
    assert any("/optimizer/" in name for name in tensors)
    assert finish(start(partial(train, recipe, out, None, None), second)) == [0] * second
    assert_close(curve(out), curve(whole[1]))


@needs_loopback
def test_a_process_that_dies_costs_no_step(whole: tuple[Recipe, Path], tmp_path: Path) -> None:
    """The other one says so, saves the step before and ends; one process finishes the run."""
    recipe, out = whole[0], tmp_path / "out"
    rare = recipe.model_copy(update={"checkpoint": CheckpointConfig(state_interval_seconds=1000)})
    both = start(partial(train, rare, out, 3, 1))
    assert finish(both) == [1, 9]
    message = (out / "error-0").read_text()
    assert "stage 'kd', step 3: another process of this run has ended; step 3 was saved" in message
    assert read_state(out / "state")[0].step == 3
    distill(rare, out, quiet=True, device="cpu")
    assert_close(curve(out), curve(whole[1]))


def state_of(teacher: Any, mixer: str) -> TrainState:
    return TrainState([StudentTrainState("student", build_student(teacher, mixer).train())])


class Harmful:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('executed')",)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("state.json", b'{"schema": 4, "stage": 2}', "schema 4, .* this version reads schema 6.*new folder"),
        ("../latest.json", b'{"folder": "000001", "at": {}}', "another version of evalsuite"),
        ("__0_0.distcp", b"half", "training state is damaged .* delete .* to start again"),
        (".metadata", b"half", "training state is damaged"),
        (
            ".metadata",
            pickle.dumps(Harmful()),
            "state is damaged .its metadata contain builtins.exec",
        ),
        (".metadata", None, "training state is damaged"),
        ("state.json", None, "training state is damaged"),
    ],
)
def test_states_that_cannot_be_loaded_are_refused(
    teacher: Any, tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    state, checkpointer = state_of(teacher, "gla"), Checkpointer(tmp_path, ProcessGroup("cpu"))
    checkpointer.save(state)
    checkpointer.wait()
    damaged = tmp_path / "000001" / file
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(tmp_path, ProcessGroup("cpu")).load(state)


def test_a_run_of_another_schema_is_refused_and_left_alone(
    whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    recipe, out = whole[0], shutil.copytree(whole[1], tmp_path / "out")
    shutil.rmtree(out / "gated_deltanet")
    path = out / "state" / f"{num_states(out / 'state'):06d}" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 4}))
    before = (out / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"schema 4, written by another version .* reads schema 6"):
        distill(recipe, out, quiet=True, device="cpu")
    assert (out / "metrics.jsonl").read_bytes() == before


def test_the_state_of_another_model_is_refused(teacher: Any, tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, ProcessGroup("cpu"))
    checkpointer.save(state_of(teacher, "gla"))
    checkpointer.wait()
    with pytest.raises(CheckpointError, match=r"has no 'model\.layers\.\d\.self_attn\..*' of student"):
        checkpointer.load(state_of(teacher, "gated_deltanet"))
    with pytest.raises(CheckpointError, match="that of another model: it has"):
        checkpointer.load(state_of(teacher, "linear_attention"))


def test_training_continues_while_a_state_is_written(
    teacher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written are the values at the time of saving; a second save waits for the first."""
    begun, release, writing = threading.Event(), threading.Event(), []
    write_data = dcp.FileSystemWriter.write_data

    def waiting(self: Any, *arguments: Any) -> Any:
        writing.append(self.path)
        begun.set()
        assert release.wait(60)
        return write_data(self, *arguments)

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", waiting)
    state, checkpointer = state_of(teacher, "gla"), Checkpointer(tmp_path, ProcessGroup("cpu"))
    (student,) = state.students
    name, weight = next(iter(student.changed_weights().items()))
    before = weight.detach().clone()
    checkpointer.save(state)
    with torch.no_grad():
        weight.add_(1)
    state.progress.step = 7
    assert begun.wait(60)
    assert num_states(tmp_path) == 0
    second = threading.Thread(target=checkpointer.save, args=(state,))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    assert len(writing) == 1
    release.set()
    second.join(60)
    checkpointer.wait()
    progress, tensors = read_state(tmp_path)
    assert progress == Progress(step=7)
    assert torch.equal(tensors[f"student/model/{name}"], before + 1)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["000002"]

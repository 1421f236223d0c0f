"""A student that diverges is left out and named; the others of its run are those of a run without it."""

import json
import logging
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.cli import main
from evalsuite.distill import Recipe, TrainingError, distill
from evalsuite.distill.recipe import write_recipe
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.training.divergence import DivergenceStop
from evalsuite.foundation import read_jsonl, write_text
from tests.distill.training.two_processes import finish, needs_loopback, start

MIXERS = ["linear_attention", "gated_deltanet", "gla"]


@pytest.fixture
def diverge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From a step of stage `kd` on, the loss of some students is not a number."""
    return partial(_diverge, monkeypatch)


def _diverge(monkeypatch: pytest.MonkeyPatch, **steps: int) -> None:
    real = DivergenceStop.check

    def check(self: DivergenceStop, step: Any, rows: Any) -> None:
        if self.stage.name == "kd":
            for label, row in zip(self.labels, rows, strict=True):
                if step.number >= steps.get(label, 99):
                    row["loss"] = float("nan")
        real(self, step, rows)

    monkeypatch.setattr(DivergenceStop, "check", check)


def recipe_of(small_recipe: Any, teacher: Path, mixers: list[str], interval: float = 1000) -> Recipe:
    saves = CheckpointConfig(state_interval_seconds=interval)
    recipe: Recipe = small_recipe(teacher, student={"mixers": mixers})
    return recipe.model_copy(update={"checkpoint": saves, "stages": recipe.stages[1:]})


@pytest.fixture(scope="module")
def alone(teacher_folder: Path, small_recipe: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The weights of a student that is trained in a run of its own."""

    @cache
    def train(mixer: str) -> dict[str, torch.Tensor]:
        recipe = recipe_of(small_recipe, teacher_folder, [mixer])
        (folder,) = distill(recipe, tmp_path_factory.mktemp(mixer) / "out", quiet=True, device="cpu")
        return dict(load_file(folder / "model.safetensors"))

    return train


@pytest.mark.parametrize(("interval", "others"), [(0, MIXERS[:1]), (1000, [MIXERS[0], MIXERS[2]])])
def test_the_other_students_go_on(
    teacher_folder: Path,
    small_recipe: Any,
    tmp_path: Path,
    diverge: Any,
    caplog: Any,
    alone: Any,
    interval: float,
    others: list[str],
) -> None:
    """From the last state; with none in this stage, from the end of the stage before."""
    mixers = [each for each in MIXERS if each in (*others, "gated_deltanet")]
    out, recipe = tmp_path / "out", recipe_of(small_recipe, teacher_folder, mixers, interval)
    diverge(gated_deltanet=2)
    with (
        caplog.at_level(logging.WARNING, "evalsuite"),
        pytest.raises(
            TrainingError, match=r"gated_deltanet has diverged \(stage 'kd', step 2: .*nan"
        ) as error,
    ):
        distill(recipe, out, quiet=True, device="cpu")
    finished = ", ".join(str(out / mixer) for mixer in others)
    assert f"finished: {finished}. Train it with a lower rate" in str(error.value)
    assert "stage 'kd', step 2: gated_deltanet: the loss is nan" in caplog.text
    assert not (out / "gated_deltanet").exists()
    noted = json.loads((out / "failed" / "gated_deltanet.json").read_text())
    assert (noted["label"], noted["stage"], noted["step"]) == ("gated_deltanet", "kd", 2)
    for mixer in others:
        lineage = json.loads((out / mixer / "lineage.json").read_text())
        assert (lineage["complete"], lineage["recipe"]["hash"]) == (True, recipe.hash)
        for name, tensor in load_file(out / mixer / "model.safetensors").items():
            assert torch.equal(tensor, alone(mixer)[name]), name
        rows = [row["step"] for row in read_jsonl(out / "metrics.jsonl") if row["student"] == mixer]
        assert rows == [*range(4)] * 2


def test_a_repeated_command_trains_nothing_again(
    teacher_folder: Path, small_recipe: Any, tmp_path: Path, diverge: Any
) -> None:
    out, recipe = tmp_path / "out", recipe_of(small_recipe, teacher_folder, MIXERS[:2])
    diverge(gated_deltanet=1)
    for _ in range(2):
        with pytest.raises(TrainingError, match="gated_deltanet has diverged"):
            distill(recipe, out, quiet=True, device="cpu")
    before = (out / "metrics.jsonl").read_bytes()
    with pytest.raises(TrainingError):
        distill(recipe, out, quiet=True, device="cpu")
    assert (out / "metrics.jsonl").read_bytes() == before


def test_the_last_student_that_diverges_ends_the_run(
    teacher_folder: Path, small_recipe: Any, tmp_path: Path, diverge: Any
) -> None:
    out, recipe = tmp_path / "out", recipe_of(small_recipe, teacher_folder, MIXERS[:2])
    diverge(gated_deltanet=1, linear_attention=3)
    with pytest.raises(TrainingError, match=r"stage 'kd', step 3: linear_attention: the loss is nan"):
        distill(recipe, out, quiet=True, device="cpu")
    with pytest.raises(TrainingError, match=r"gated_deltanet has diverged .*; linear_attention has diverged"):
        distill(recipe, out, quiet=True, device="cpu")


def test_the_command_ends_with_an_error(
    teacher_folder: Path, small_recipe: Any, tmp_path: Path, diverge: Any, capsys: Any
) -> None:
    diverge(gla=0)
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    write_text(path, write_recipe(recipe_of(small_recipe, teacher_folder, ["gla", "gated_deltanet"])))
    assert main(["distill", str(path), "--out", str(out), "--device", "cpu", "--quiet"]) == 71
    assert "evalsuite distill: gla has diverged" in capsys.readouterr().err
    assert (out / "gated_deltanet" / "lineage.json").exists()


def _train_and_diverge(recipe: Recipe, out: Path, rank: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _diverge(patch, gated_deltanet=1)
        try:
            distill(recipe, out, quiet=True, device="cpu")
        except TrainingError as error:
            write_text(out / f"error-{rank}", str(error))


@needs_loopback
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_all_processes_leave_the_same_student_out(
    teacher_folder: Path, small_recipe: Any, tmp_path: Path, sharding: str
) -> None:
    out = tmp_path / "out"
    recipe = recipe_of(small_recipe, teacher_folder, MIXERS[:2])
    two_steps = [each.model_copy(update={"tokens": 256}) for each in recipe.stages]
    recipe = recipe.model_copy(update={"sharding": sharding, "stages": two_steps})
    assert finish(start(partial(_train_and_diverge, recipe, out), 2)) == [0, 0]
    for rank in (0, 1):
        assert "gated_deltanet has diverged (stage 'kd', step 1" in (out / f"error-{rank}").read_text()
    assert json.loads((out / "linear_attention" / "lineage.json").read_text())["complete"]

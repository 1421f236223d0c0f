"""Early stop of diverged losses, in one process and over a restart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill.recipe.config import DivergenceConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.divergence import DivergenceStop
from evalsuite.distill.training.loop import Step, TrainingError
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse

TOKENS = torch.arange(8).view(2, 4)


def check(stop: DivergenceStop, number: int, loss: float, norm: float = 1.0, **measured: float) -> None:
    """Check step `number` of two students, of which the second has `loss`."""
    step = Step(number, 8 * number, MicroBatch(TOKENS, TOKENS + 1), {})
    rows = [{"loss": 2.0, "grad_norm": 1.0}, {"loss": loss, "grad_norm": norm, **measured}]
    stop.check(step, rows)


@pytest.fixture
def kd(stage: Any) -> Stage:
    return Stage.model_validate(stage("kd", "kd"))


def stop_at(stop: DivergenceStop, losses: list[float], first: int = 0) -> tuple[int, str] | None:
    """The step at which training is stopped, and why; None if it is not."""
    for number, loss in enumerate(losses, first):
        try:
            check(stop, number, loss)
        except TrainingError as error:
            return number, str(error)
    return None


def test_a_loss_that_stays_far_above_its_best_value_stops_training(kd: Stage, tmp_path: Path) -> None:
    """The smoothed loss is 1.8 after one loss of 9, and above 2 from the second on."""

    def new(config: DivergenceConfig | None) -> DivergenceStop:
        return DivergenceStop(tmp_path, kd, ["a", "b"], config, {})

    config = DivergenceConfig(factor=2.0, patience=3)
    found = stop_at(new(config), [1.0, 9, 9, 9, 9, 9])
    assert found is not None
    assert found[0] == 4
    assert "b: the loss has been over 2 for 3 steps, its best value was 1, and it is 9." in found[1]
    saved = load_file(tmp_path / "failed" / "kd-4.safetensors")
    assert torch.equal(saved["input_ids"], TOKENS)
    assert saved.keys() == {"input_ids", "labels"}
    assert stop_at(new(config), [1.0, 9, 5, 0, 3, 0, 3]) is None
    assert stop_at(new(None), [1.0, *[9] * 99]) is None


@pytest.mark.parametrize(("floor", "stops"), [(0.1, False), (0.0, True)])
def test_a_student_that_begins_at_its_teacher_has_not_diverged(
    kd: Stage, tmp_path: Path, floor: float, stops: bool
) -> None:
    config = DivergenceConfig(patience=3, floor=floor)
    stop = DivergenceStop(tmp_path, kd, ["a", "b"], config, {})
    assert (stop_at(stop, [0.002, *[0.05] * 30]) is not None) == stops
    if not stops:
        assert stop_at(stop, [1.0] * 30, first=31) is not None


def test_a_restart_does_not_forget_the_best_loss(kd: Stage, tmp_path: Path) -> None:
    config = DivergenceConfig(factor=2.0, patience=3)
    memory: dict[str, Any] = {}
    assert stop_at(DivergenceStop(tmp_path, kd, ["a", "b"], config, memory), [1.0, 9, 9]) is None
    again = DivergenceStop(tmp_path, kd, ["a", "b"], config, dict(memory))
    found = stop_at(again, [9, 9, 9], first=3)
    assert found is not None
    assert found[0] == 4
    # Another stage has other losses.
    other = DivergenceStop(tmp_path, kd.model_copy(update={"name": "next"}), ["a", "b"], config, memory)
    assert stop_at(other, [9] * 9) is None


def test_a_validation_that_is_not_finite_stops_at_once(kd: Stage, tmp_path: Path) -> None:
    stop = DivergenceStop(tmp_path, kd, ["a", "b"], None, {})
    check(stop, 0, 1.0, validation_kl=0.5, validation_ppl=9.0)
    with pytest.raises(TrainingError, match=r"b: the loss is 1.0, the gradient norm 1.0, validation_ppl inf"):
        check(stop, 1, 1.0, validation_kl=0.5, validation_ppl=float("inf"))


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_values_that_are_not_finite_stop_at_once(kd: Stage, tmp_path: Path, loss: float, norm: float) -> None:
    stop = DivergenceStop(tmp_path, kd, ["a", "b"], None, {})
    with pytest.raises(
        TrainingError, match=f"stage 'kd', step 1: b: the loss is {loss}, the gradient norm {norm}"
    ):
        check(stop, 1, loss, norm)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"factor.*greater than 1"):
        parse({"factor": 0.5}, DivergenceConfig, "recipe.yaml")

"""Optimizer states of 8 bits: close to 32 bits, saved exactly, and independent of the number of processes."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from evalsuite.distill import distill
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.optim import load_state_tensors, set_lr, state_tensors
from evalsuite.foundation import ConfigError, read_jsonl
from evalsuite.foundation.strict import parse
from tests.distill.stage_data import interrupted
from tests.distill.training.two_processes import finish, needs_loopback, start

pytest.importorskip("torchao", reason="extra lowbit")
from evalsuite.distill.optim import low_bit

SHAPES = {"matrix": (32, 256), "narrow": (512, 24), "gains": (4096,)}


@pytest.fixture(autouse=True)
def without_compiler() -> Any:
    """torchao compiles its step for every shape, which takes longer than the steps."""
    with torch.compiler.set_stance("force_eager"):
        yield


def stage_with(stage: Any, bits: int) -> Stage:
    return Stage.model_validate(stage("kd", "kd", optimizer={"state_bits": bits}))


def new(stage: Stage) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()
    }
    (optimizer,) = stage.optimizer.build(parameters, lambda name: stage.lr, ["gains"])
    return parameters, optimizer


def run(parameters: dict[str, nn.Parameter], optimizer: Any, stage: Stage, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        set_lr([optimizer], stage.schedule.factor(step % stage.steps, stage.steps))
        optimizer.step()


def test_updates_are_close_to_those_of_32_bits(stage: Any) -> None:
    found, expected, initial = {}, {}, new(stage_with(stage, 32))[0]
    for bits, into in ((8, found), (32, expected)):
        parameters, optimizer = new(stage_with(stage, bits))
        run(parameters, optimizer, stage_with(stage, bits), range(8))
        into.update(parameters)
    for name in SHAPES:
        moved = (expected[name] - initial[name]).norm()
        assert moved > 0
        assert (found[name] - expected[name]).norm() < 0.1 * moved
    torch.testing.assert_close(found["narrow"], expected["narrow"], rtol=1e-5, atol=1e-6)


def test_a_state_takes_a_byte_a_value(stage: Any) -> None:
    parameters, optimizer = new(stage_with(stage, 8))
    run(parameters, optimizer, stage_with(stage, 8), range(1))

    def bytes_of(name: str) -> int:
        return sum(x.nbytes for x in state_tensors(optimizer, parameters[name]).values())

    values = parameters["matrix"].numel()
    assert 2 * values < bytes_of("matrix") <= 2 * values * (1 + 4 / 256) + 4
    assert bytes_of("narrow") >= 8 * parameters["narrow"].numel()


def test_a_saved_state_continues_bit_for_bit(stage: Any) -> None:
    chosen = stage_with(stage, 8)
    parameters, optimizer = new(chosen)
    run(parameters, optimizer, chosen, range(3))
    saved: dict[str, dict[str, Tensor]] = {
        name: {key: value.clone() for key, value in state_tensors(optimizer, parameter).items()}
        for name, parameter in parameters.items()
    }
    assert saved["matrix"]["exp_avg.codes"].dtype == torch.uint8
    assert saved["matrix"]["exp_avg.scale"].shape == (32, 1)
    again, other = new(chosen)
    for name, parameter in again.items():
        parameter.data.copy_(parameters[name].data)
        load_state_tensors(other, parameter, saved[name])
    for each, which in ((parameters, optimizer), (again, other)):
        run(each, which, chosen, range(3, 6))
    for name in SHAPES:
        assert torch.equal(again[name], parameters[name])


def test_muon_has_no_states_of_8_bits(stage: Any) -> None:
    wrong = stage("kd", "kd", optimizer={"kind": "muon", "state_bits": 8})
    with pytest.raises(ConfigError, match="it applies to kind adamw or adamw_bf16 only"):
        parse(wrong, Stage, "recipe")


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_jsonl(out / "metrics.jsonl")]


@needs_loopback
@pytest.mark.long
def test_a_run_resumes_on_another_number_of_processes(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit on one process; to rounding from two sharded ones, whose blocks are the same."""
    monkeypatch.setattr(low_bit, "BLOCK", 16)
    recipe = small_recipe(
        teacher_folder,
        stages=[stage("kd", "kd", optimizer={"state_bits": 8})],
        sharding="full",
        checkpoint={"state_interval_seconds": 0},
    )
    distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    interrupted(recipe, tmp_path / "one", steps=3)
    distill(recipe, tmp_path / "one", quiet=True, device="cpu")
    assert finish(start(partial(interrupted, recipe, tmp_path / "two", steps=3))) == [0, 0]
    distill(recipe, tmp_path / "two", quiet=True, device="cpu")
    expected = load_file(tmp_path / "whole" / "gated_deltanet" / "model.safetensors")
    found = load_file(tmp_path / "one" / "gated_deltanet" / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert losses(tmp_path / "one") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "two")) == 4
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)

"""Two processes train the same student as one, replicated or sharded."""

import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from evalsuite.distill import distill
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.training.placement import is_sharded
from evalsuite.foundation import ConfigError, read_jsonl
from tests.distill.training.saved_states import num_states
from tests.distill.training.two_processes import finish, needs_loopback, run_both, start


def train(recipe, out: Path, rank: int) -> None:
    distill(recipe, out, quiet=True, device="cpu")


def curve(out: Path) -> list[float]:
    rows = read_jsonl(out / "metrics.jsonl")
    return [
        value for row in rows for key, value in row.items() if key == "loss" or key.startswith("grad_norm")
    ]


@pytest.fixture(scope="module")
def alone(teacher_folder, small_recipe, stage, tmp_path_factory):
    """A recipe with layerwise and end-to-end stages, and its single-process run."""
    torch.set_num_threads(1)
    options = {"batch_size": 4, "tokens": 512, "loss_mask": "completion", "packing": "documents"}
    recipe = small_recipe(
        teacher_folder,
        log_grad_norms=True,
        stages=[
            stage("align", "attention_output", **options),
            stage("blocks", "hidden_state", trainable="block", **options),
            stage("frozen", "kd", trainable="no_mlp", micro_batch_size=1, **options),
            stage("kd", "kd", activation_checkpointing="block", **options),
        ],
    )
    out = tmp_path_factory.mktemp("alone") / "out"
    distill(recipe, out, quiet=True, device="cpu")
    return recipe, out


@needs_loopback
@pytest.mark.parametrize("sharding", [pytest.param("none", marks=pytest.mark.long), "full"])
def test_two_processes_train_the_same_student_as_one(alone, tmp_path, sharding):
    recipe, one = alone
    changed = recipe.model_copy(update={"sharding": sharding})
    assert run_both(partial(train, changed, tmp_path / "two")) == [0, 0]
    assert curve(tmp_path / "two") == pytest.approx(curve(one), rel=1e-4)
    curves = [
        list(read_jsonl(each / "gated_deltanet" / "training.jsonl")) for each in (tmp_path / "two", one)
    ]
    assert [row["tokens"] for row in curves[0]] == [row["tokens"] for row in curves[1]]
    assert [row["loss"] for row in curves[0]] == pytest.approx([row["loss"] for row in curves[1]], rel=1e-4)
    expected = load_file(one / "gated_deltanet" / "model.safetensors")
    found = load_file(tmp_path / "two" / "gated_deltanet" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # Where a gradient is almost 0, rounding decides in which direction Adam steps.
        difference = (found[name] - tensor).abs()
        assert difference.mean() < 2e-6, name
        assert difference.max() < recipe.stages[-1].lr, name
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "gated_deltanet")
    assert torch.equal(model.lm_head.weight, found["model.embed_tokens.weight"])


@needs_loopback
@pytest.mark.long
def test_a_killed_sharded_run_resumes(alone, tmp_path):
    recipe, one = alone
    changes = {"sharding": "full", "checkpoint": CheckpointConfig(state_interval_seconds=0, save_tokens=256)}
    recipe, out = recipe.model_copy(update=changes), tmp_path / "out"
    both = start(partial(train, recipe, out))
    while both[0].is_alive() and num_states(out / "state") < 6:
        time.sleep(0.005)
    for process in both:
        process.kill()
    assert finish(both) != [0, 0]
    assert finish(start(partial(train, recipe, out))) == [0, 0]
    assert curve(out) == pytest.approx(curve(one), rel=1e-4)
    AutoModelForCausalLM.from_pretrained(out / "checkpoints" / "gated_deltanet" / "kd-1792")


def test_models_are_sharded_from_three_billion_parameters(small_recipe, stage):
    recipe = small_recipe("teacher")
    assert not is_sharded(recipe, 2_999_999_999, world_size=2)
    assert is_sharded(recipe, 3_000_000_000, world_size=2)
    assert not is_sharded(recipe, 3_000_000_000, world_size=1)
    assert not is_sharded(recipe.model_copy(update={"sharding": "none"}), 10**10, world_size=2)
    full = recipe.model_copy(update={"sharding": "full"})
    assert is_sharded(full, 1000, world_size=2)
    muon = small_recipe("teacher", sharding="full", stages=[stage("kd", "kd", optimizer={"kind": "muon"})])
    with pytest.raises(ConfigError, match="optimizer muon needs unsharded parameters"):
        is_sharded(muon, 1000, world_size=2)
    student = full.student.model_copy(update={"calibration": {"method": "taylor", "data": "pocket"}})
    with pytest.raises(ConfigError, match=r"student.calibration needs unsharded models"):
        is_sharded(full.model_copy(update={"student": student}), 1000, world_size=2)


@needs_loopback
@pytest.mark.long
def test_frozen_weights_are_sharded_in_bf16(teacher_folder, small_recipe, stage, tmp_path):
    """Groups of frozen bf16 weights, and of frozen ones with fp32 masters, train as one process does."""
    options = {"batch_size": 4, "tokens": 512, "micro_batch_size": 1}
    stages = [stage("align", "attention_output", **options), stage("kd", "kd", trainable="no_mlp", **options)]
    recipe = small_recipe(teacher_folder, stages=stages, precision="bf16")
    distill(recipe, tmp_path / "one", quiet=True, device="cpu")
    full = recipe.model_copy(update={"sharding": "full"})
    assert run_both(partial(train, full, tmp_path / "two")) == [0, 0]
    assert curve(tmp_path / "two") == pytest.approx(curve(tmp_path / "one"), rel=2e-2)
    name = "model.layers.0.mlp.up_proj.weight"
    frozen = [
        load_file(folder / "model.safetensors")[name]
        for folder in (teacher_folder, *(tmp_path / each / "gated_deltanet" for each in ("one", "two")))
    ]
    assert torch.equal(frozen[1], frozen[0].bfloat16())
    assert torch.equal(frozen[2], frozen[1])

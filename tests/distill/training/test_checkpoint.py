"""Saved checkpoints are complete and appear atomically."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill import distill
from evalsuite.distill.training.student_writer import save_checkpoint
from evalsuite.models import MIXERS, build_student, load_checkpoint
from tests.distill.training.saved_states import read_state


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_a_saved_student_of_every_mixer_is_complete(teacher, tokenizer, tmp_path, mixer):
    student = build_student(teacher, mixer)
    with torch.no_grad():
        for layer in student.model.layers:
            for buffer in layer.self_attn.buffers():
                buffer.add_(0.125)  # so that re-created buffers would be noticed
    trained = {name: parameter.detach() for name, parameter in student.named_parameters()}
    save_checkpoint(tmp_path / mixer, student, trained, tokenizer, {})
    loaded = load_checkpoint(tmp_path / mixer, dtype="float32").model.state_dict()
    assert set(loaded) == set(student.state_dict())
    for name, tensor in student.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_a_checkpoint_appears_atomically_with_its_loss_curve(teacher, tokenizer, tmp_path, monkeypatch):
    student, folder = build_student(teacher, "gla"), tmp_path / "gla"
    trained = {name: parameter.detach() for name, parameter in student.named_parameters()}
    row = {"stage": "kd", "tokens": 64, "loss": 0.5, "lr": 1e-3, "seconds": 1.0}
    seen = []

    def replace(source, target):
        if target == folder:
            seen.append({path.name for path in source.iterdir()})
        os_replace(source, target)

    os_replace = os.replace
    monkeypatch.setattr("evalsuite.distill.training.student_writer.os.replace", replace)
    save_checkpoint(folder, student, trained, tokenizer, {"schema": 1}, [row])
    assert {"lineage.json", "training.jsonl", "model.safetensors"} <= seen[0]
    assert (folder / "training.jsonl").read_text() == json.dumps(row) + "\n"
    # Saved again without a loss curve, the old one is removed.
    save_checkpoint(folder, student, trained, tokenizer, {"schema": 1})
    assert not (folder / "training.jsonl").exists()
    with pytest.raises(ValueError, match="JSON compliant"):
        save_checkpoint(tmp_path / "nan", student, trained, tokenizer, {}, [row | {"loss": float("nan")}])
    assert not (tmp_path / "nan").exists()


def test_a_state_holds_the_trained_parameters_only(teacher_folder, tmp_path, small_recipe, stage):
    """Frozen parameters come from the teacher, so that neither masters nor optimizers keep them."""
    stages = [stage("mixer", "attention_output"), stage("kd", "kd", trainable="mixer")]
    recipe = small_recipe(teacher_folder, stages=stages, precision="bf16")
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    state, tensors = read_state(tmp_path / "out" / "state")
    assert state.stage == 2
    saved = {name.partition("/model/")[2] for name in tensors if "/model/" in name}
    assert saved
    assert all(".self_attn." in name for name in saved), saved
    assert {tensor.dtype for name, tensor in tensors.items() if "/model/" in name} == {torch.float32}
    student = load_file(folder / "model.safetensors")
    shutil.rmtree(folder)
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    again = load_file(folder / "model.safetensors")
    assert again.keys() == student.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in student.items())


def test_a_parameter_keeps_its_fp32_value_until_its_stage(teacher_folder, tmp_path, small_recipe, stage):
    """An MLP that a later stage trains starts from the teacher's fp32 weights, not from their bf16 copy."""
    frozen = {"lr": 1e-30, "optimizer": {"weight_decay": 0.0}}
    stages = [stage("mixer", "attention_output"), stage("kd", "kd", **frozen)]
    recipe = small_recipe(teacher_folder, stages=stages, precision="bf16")
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    _, tensors = read_state(tmp_path / "out" / "state")
    name = "model.layers.1.mlp.up_proj.weight"
    teacher = load_file(teacher_folder / "model.safetensors")[name]
    assert not torch.equal(teacher, teacher.bfloat16().float())
    assert torch.equal(tensors[f"gated_deltanet/model/{name}"], teacher)

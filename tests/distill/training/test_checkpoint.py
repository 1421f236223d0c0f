"""Saved checkpoints are complete and appear atomically."""

import json
import os

import pytest
import torch

from evalsuite.distill.training.checkpoint import save_checkpoint
from evalsuite.models import MIXERS, build_student, load_checkpoint


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_a_saved_student_of_every_mixer_is_complete(teacher, tokenizer, tmp_path, mixer):
    student = build_student(teacher, mixer)
    with torch.no_grad():
        for layer in student.model.layers:
            for buffer in layer.self_attn.buffers():
                buffer.add_(0.125)  # so that re-created buffers would be noticed
    trained = {name: parameter.detach() for name, parameter in student.named_parameters()}
    save_checkpoint(tmp_path / mixer, student, trained, tokenizer, {}, torch.float32)
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
    monkeypatch.setattr("evalsuite.distill.training.checkpoint.os.replace", replace)
    save_checkpoint(folder, student, trained, tokenizer, {"schema": 1}, torch.float32, [row])
    assert {"lineage.json", "training.jsonl", "model.safetensors"} <= seen[0]
    assert (folder / "training.jsonl").read_text() == json.dumps(row) + "\n"
    # Saved again without a loss curve, the old one is removed.
    save_checkpoint(folder, student, trained, tokenizer, {"schema": 1}, torch.float32)
    assert not (folder / "training.jsonl").exists()
    with pytest.raises(ValueError, match="JSON compliant"):
        save_checkpoint(
            tmp_path / "nan", student, trained, tokenizer, {}, torch.float32, [row | {"loss": float("nan")}]
        )
    assert not (tmp_path / "nan").exists()

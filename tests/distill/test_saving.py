"""What a training writes is the whole student."""

import pytest
import torch

from evalsuite.distill.saving import save_checkpoint
from evalsuite.models import MIXERS, build_student, load_checkpoint


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_a_saved_student_of_every_mixer_is_whole(teacher, tokenizer, tmp_path, mixer):
    student = build_student(teacher, mixer)
    with torch.no_grad():
        for layer in student.model.layers:
            for buffer in layer.self_attn.buffers():
                buffer.add_(0.125)  # else a load that makes them anew would not be seen
    trained = {name: parameter.detach() for name, parameter in student.named_parameters()}
    save_checkpoint(tmp_path / mixer, student, trained, tokenizer, {}, torch.float32)
    loaded = load_checkpoint(tmp_path / mixer, dtype="float32").model.state_dict()
    assert set(loaded) == set(student.state_dict())
    for name, tensor in student.state_dict().items():
        assert torch.equal(loaded[name], tensor), name

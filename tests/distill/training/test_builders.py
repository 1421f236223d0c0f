"""What is checked while models are built, before training starts."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evalsuite.distill.training.builders import build_models, check_recipe
from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.foundation.dependencies import missing_dependency

CPU = torch.device("cpu")


@pytest.mark.parametrize("objective", ["attention_output", "hidden_state", "kd"])
def test_sequences_beyond_the_teachers_positions_are_refused(
    teacher_folder: Path, small_recipe: Any, stage: Any, objective: str
) -> None:
    fits, beyond = (
        small_recipe(teacher_folder, stages=[stage("long", objective, seq_len=length, tokens=2 * length)])
        for length in (512, 513)
    )
    check_recipe(fits)
    message = r"stage 'long': seq_len = 513: the teacher's positions end at 512; --set stage.long.seq_len=512"
    with pytest.raises(ConfigError, match=message):
        check_recipe(beyond)


def rotary_teacher(folder: Path, tokenizer: Any, rope_type: str) -> Path:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("rope_type", "mixers", "refused"),
    [
        ("linear", ["gated_deltanet", "softmax"], False),
        ("dynamic", ["gated_deltanet", "softmax"], True),
        ("dynamic", ["gated_deltanet", "gated_deltanet"], False),
    ],
)
def test_stages_without_the_teacher_go_as_far_as_the_positional_scheme(
    rope_type: str,
    mixers: list[str],
    refused: bool,
    small_recipe: Any,
    stage: Any,
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    teacher = rotary_teacher(tmp_path / "teacher", tokenizer, rope_type)
    softmax = [layer for layer, name in enumerate(mixers) if name == "softmax"]
    recipe = small_recipe(
        teacher,
        student={"softmax_layers": softmax},
        stages=[stage("kd", "kd"), stage("long", "sft", seq_len=256)],
    )
    if not refused:
        check_recipe(recipe)
        return
    message = r"stage 'long': seq_len = 256, student 'gated_deltanet': its positions end at 128: .*'dynamic'"
    with pytest.raises(ConfigError, match=message):
        check_recipe(recipe)


def test_states_of_8_bits_name_their_extra(
    teacher_folder: Path, small_recipe: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    recipe = small_recipe(teacher_folder, stages=[stage("kd", "kd", optimizer={"state_bits": 8})])
    with pytest.raises(ModuleNotFoundError) as caught:
        build_models(recipe, CPU)
    refusal = missing_dependency(caught.value, "distill")
    assert str(refusal) == "package 'torchao' is not installed: pip install 'evalsuite[lowbit]'"


def test_a_tokenizer_that_was_loaded_is_not_loaded_again(
    teacher_folder: Path, small_recipe: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(teacher_folder, stages=[stage("kd", "kd")])
    tokenizer = check_recipe(recipe)
    monkeypatch.delattr("evalsuite.models.checkpoints.load._load_tokenizer")
    assert build_models(recipe, CPU, tokenizer=tokenizer).tokenizer is tokenizer


def test_a_tokenizer_of_another_model_is_refused_before_weights_are_read(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(teacher_folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    with pytest.raises(
        CheckpointError, match=r"other: the tokenizer has token id \d+, but the model has only 50"
    ):
        check_recipe(small_recipe(folder, stages=[stage("kd", "kd")]))


ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_models_share_no_weights_on_their_device(
    teacher_folder: Path, small_recipe: Any, stage: Any, device: str
) -> None:
    """New students do until then, and have the same weights on every device."""
    student = {"mixers": ["gla", "gated_deltanet"], "softmax_layers": [1]}
    recipe = small_recipe(teacher_folder, student=student, precision="fp32", stages=[stage("kd", "kd")])
    wanted, found = (build_models(recipe, torch.device(kind)) for kind in ("cpu", device))
    pointers: list[int] = []
    for label, model in [*found.students.items(), ("teacher", found.teacher)]:
        theirs = wanted.teacher if label == "teacher" else wanted.students[label]
        for (name, mine), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
            assert mine.device.type == device
            assert torch.equal(mine.cpu(), other), (label, name)
            pointers.append(mine.data_ptr())
    assert len(set(pointers)) == len(pointers)

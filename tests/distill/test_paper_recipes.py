"""Recipes of papers: parameter counts as printed, and a training step of every structure on a tiny shape."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from evalsuite.distill import Recipe, distill, load_recipe
from evalsuite.distill.training.builders import layer_mixers
from evalsuite.foundation import ConfigError, read_json, read_jsonl
from evalsuite.models import StudentConfig, load_checkpoint
from evalsuite.models.decoder.cost import ModelCost
from evalsuite.models.mixers import AttentionSpan
from tests.models.decoder.test_cost import TEACHERS


def student(recipe: Recipe, mixer: str, teacher: str) -> StudentConfig:
    """The config of the recipe's student, on the teacher's config without its weights."""
    base = TEACHERS[teacher]
    names = layer_mixers(recipe, mixer, base.num_hidden_layers)
    options = {name: recipe.student.options[name] for name in set(names) if name in recipe.student.options}
    return StudentConfig(teacher=base.to_dict(), mixers=names, mixer_options=options)


@pytest.mark.parametrize(("variant", "mixer", "total"), [("", "kda", 613), (":mamba2", "mamba2", 641)])
def test_gendistill_has_the_parameters_of_table_8(variant: str, mixer: str, total: int) -> None:
    """arXiv 2603.26556; the 'non-embedding' figures are totals with the tied embedding counted once."""
    recipe = load_recipe(f"gendistill-2026{variant}")
    assert recipe.teacher == "Qwen/Qwen3-0.6B"
    assert recipe.student.mixers == [mixer]
    assert round(ModelCost.of(student(recipe, mixer, "Qwen3-0.6B")).num_params / 1e6) == total


TABLE_4 = {
    "mlstm": 448, "gla": 420, "hgrn2": 409, "retnet": 566, "mamba2": 523, "metala": 448, "deltanet": 449,
    "rebased": 404,
}  # fmt: skip
"""Millions of parameters in Table 4 of arXiv 2504.14366v1, but for Hedgehog (see the recipe's notes)."""


@pytest.mark.parametrize("mixer", TABLE_4)
def test_kd_nine_has_the_parameters_of_table_4(mixer: str) -> None:
    """The printed figures count the head apart from the embeddings."""
    recipe, base = load_recipe("kd-nine-2025"), TEACHERS["SmolLM2-360M"]
    assert recipe.teacher == "HuggingFaceTB/SmolLM2-360M"
    assert {*recipe.student.mixers} == {*TABLE_4, "hedgehog"}
    head = base.vocab_size * base.hidden_size
    total = ModelCost.of(student(recipe, mixer, "SmolLM2-360M")).num_params + head
    assert abs(total / 1e6 - TABLE_4[mixer]) < 0.61


def tiny_teacher(folder: Path, recipe: Recipe, tokenizer: Any) -> int:
    """Write a random teacher with the recipe's kind of architecture; return its number of layers."""
    assert isinstance(recipe.student.softmax_layers, list)
    # kd-nine-2025 has expansions that fit the heads of SmolLM2-360M only.
    heads = (15, 5, 64) if "360M" in str(recipe.teacher) else (4, 2, 16)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 60,
        "intermediate_size": 64,
        "num_hidden_layers": 4 if recipe.student.softmax_layers else 2,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "max_position_embeddings": 256,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    torch.manual_seed(0)
    qwen = "Qwen3" in str(recipe.teacher)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes)) if qwen else LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sizes["num_hidden_layers"]


def tiny(recipe: Recipe, folder: Path, tokenizer: Any) -> Recipe:
    """The recipe on a random teacher and the pocket corpus: the same stages, of one step each."""
    layers = tiny_teacher(folder, recipe, tokenizer)
    value = recipe.model_dump()
    data = {"kind": "pocket", "max_haystack_tokens": 64}
    softmax = [layer for layer in (0, 2) if recipe.student.softmax_layers and layer < layers]
    sizes = {"tokens": 128, "seq_len": 64, "batch_size": 2, "micro_batch_size": None}
    return Recipe.model_validate(
        {
            **value,
            "teacher": str(folder),
            "variants": {},
            "validation": value["validation"] and {"every_steps": 1, "tokens": 128},
            "data": dict.fromkeys(value["data"], data),
            "student": {**value["student"], "softmax_layers": softmax},
            "stages": [{**stage, **sizes} for stage in value["stages"]],
        }
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gendistill-2026", marks=pytest.mark.long),
        pytest.param("gendistill-2026:mamba2", marks=pytest.mark.long),
        pytest.param("gendistill-2026:t6-unfrozen", marks=pytest.mark.long),
        pytest.param("gendistill-2026:t10-random", marks=pytest.mark.long),
        "instruction-aware",
        "kd-nine-2025",
        pytest.param("kd-nine-2025:softmax", marks=pytest.mark.long),
        pytest.param("kd-nine-2025:ce-only", marks=pytest.mark.long),
        pytest.param("kd-nine-2025:from-scratch", marks=pytest.mark.long),
        "kd-nine-2025:qkv-mm-h2h",
        "kl-guided-2026",
        pytest.param("kl-guided-2026:sliding-window", marks=pytest.mark.long),
        "linearizing-2025",
        pytest.param("linearizing-2025:softmax", marks=pytest.mark.long),
        "radlads",
        "taylor-calibrate-2026",
    ],
)
def test_a_step_of_every_stage_on_a_tiny_shape(name: str, tokenizer: Any, tmp_path: Path) -> None:
    recipe = tiny(load_recipe(name), tmp_path / "teacher", tokenizer)
    folders = distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    assert [folder.name for folder in folders] == recipe.student.mixers
    rows = list(read_jsonl(tmp_path / "out" / "metrics.jsonl"))
    assert len(rows) == len(recipe.stages) * len(folders)
    assert all(row["loss"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert all(("validation_kl" in row) == (recipe.validation is not None) for row in rows)
    for folder in folders:
        mixers = read_json(folder / "lineage.json")["mixers"]
        assert set(mixers) <= {"softmax", folder.name}
        assert (folder.name == "softmax") or mixers.count("softmax") == len(recipe.student.softmax_layers)


def test_a_step_of_post_training_continues_a_student(tokenizer: Any, tmp_path: Path) -> None:
    first = tiny(load_recipe("radlads"), tmp_path / "teacher", tokenizer)
    (student_folder,) = distill(first, tmp_path / "first", device="cpu", quiet=True)
    value = load_recipe("post-training").model_dump()
    value["student"] |= {"initial_checkpoints": {"gated_deltanet": str(student_folder)}}
    value["data"] = {"smoltalk": {"kind": "pocket", "max_haystack_tokens": 64}}
    value["stages"][0] |= {"tokens": 128, "seq_len": 64, "batch_size": 2, "micro_batch_size": None}
    recipe = Recipe.model_validate(value)
    assert recipe.teacher is None
    (folder,) = distill(recipe, tmp_path / "second", device="cpu", quiet=True)
    (row,) = read_jsonl(tmp_path / "second" / "metrics.jsonl")
    assert row["loss"] > 0
    assert [each["recipe"]["name"] for each in read_json(folder / "lineage.json")["ancestors"]] == ["radlads"]


def test_layers_name_further_mixers(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    options = {"sliding_window": {"window": 7, "sinks": 2}, "retnet": {"output_norm": "rms"}}
    layers = {"sliding_window": [2], "retnet": [0]}
    recipe = small_recipe(
        teacher_folder,
        student={"mixers": ["gla", "kda"], "layers": layers, "options": options},
        stages=[stage("align", "attention_output", tokens=128), stage("kd", "kd", tokens=128)],
    )
    for folder in distill(recipe, tmp_path / "out", device="cpu", quiet=True):
        model = load_checkpoint(str(folder)).model
        assert model.config.mixers == ["retnet", folder.name, "sliding_window"]
        assert model.config.mixer_options["sliding_window"] == {"window": 7, "sinks": 2}
        assert model.model.layers[2].self_attn.span == AttentionSpan(7, 2)
        assert model.config.mixer_options["retnet"] == {"output_norm": "rms"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": {"retnet": [0, 3]}}, r"student.layers.retnet: the teacher has layers 0 to 2, not \[3\]"),
        (
            {"softmax_layers": [1], "layers": {"retnet": [1]}},
            r"student.layers.retnet: layer 1 is also in student.softmax_layers",
        ),
    ],
)
def test_layers_without_meaning_are_refused(small_recipe: Any, changes: Any, message: str) -> None:
    recipe = small_recipe("unused", student={"mixers": ["gla"], **changes})
    with pytest.raises(ConfigError, match=message):
        layer_mixers(recipe, "gla", 3)


def test_nothing_is_copied_from_scratch(
    teacher_folder: Path, teacher: Any, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    student = {"mixers": ["gla"], "init": "scratch"}
    # The teacher's own seed would draw the teacher's weights again.
    stages = [stage("kd", "kd", tokens=128, lr=1e-9)]
    recipe = small_recipe(teacher_folder, student=student, stages=stages, seed=1)
    (folder,) = distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    model = load_checkpoint(str(folder)).model
    for mine, original in (
        (model.model.embed_tokens.weight, teacher.model.embed_tokens.weight),
        (model.model.layers[0].mlp.up_proj.weight, teacher.model.layers[0].mlp.up_proj.weight),
    ):
        cosine = torch.nn.functional.cosine_similarity(mine.flatten(), original.flatten(), dim=0)
        assert mine.abs().max() > 0
        assert abs(cosine.item()) < 0.1

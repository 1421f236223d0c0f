"""Dry runs need no network and no weights, and parameter counts agree with the papers."""

import pytest

from evalsuite.distill import dry_run, known_recipes, load_recipe
from evalsuite.distill.training.memory.estimate import recipe_shape
from evalsuite.foundation import ConfigError


@pytest.mark.parametrize("name", known_recipes())
def test_every_shipped_recipe_has_a_dry_run_offline(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for variant in [name, *(f"{name}:{variant}" for variant in load_recipe(name).variants)]:
        recipe = load_recipe(variant)
        estimate = dry_run(recipe, device="cuda")
        assert estimate.tokens == recipe.tokens
        assert estimate.flops > 0
        assert estimate.seconds > 0
        text = str(estimate)
        assert all(stage.name in text for stage in recipe.stages)


def test_parameter_counts_equal_those_of_published_models(small_recipe):
    sizes = {
        "HuggingFaceTB/SmolLM2-135M": 134.5e6,
        "HuggingFaceTB/SmolLM2-1.7B": 1.711e9,
        "Qwen/Qwen3-0.6B": 596e6,
    }
    for teacher, parameters in sizes.items():
        for name in (teacher, f"{teacher}@1a2b"):
            assert recipe_shape(small_recipe(name)).num_params == pytest.approx(parameters, rel=2e-3)


def test_students_share_the_teacher_forward_only(small_recipe):
    recipe = small_recipe("HuggingFaceTB/SmolLM2-135M")
    one, four = (dry_run(recipe, mixers=["gla"] * number, device="cuda").flops for number in (1, 4))
    assert 2 * one < four < 4 * one


def test_an_unknown_teacher_suggests_the_nearest(small_recipe, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="SmolLM2-135M"):
        dry_run(small_recipe("HuggingFaceTB/SmolLM2-135"), device="cuda")


def test_the_shape_of_a_local_teacher_is_read_from_its_folder(teacher_folder, small_recipe):
    estimate = dry_run(small_recipe(teacher_folder), device="cpu")
    assert "CPU cores" in str(estimate)
    assert [stage.steps for stage in estimate.stages] == [4, 4, 4]


def test_matrix_mixing_costs_matrices_of_the_squared_length(small_recipe, stage):
    """One fp32 matrix of 48 × 15 × 512² elements takes 0.75 GB."""

    def estimate(objective, **sizes):
        sizes = {"seq_len": 512, "batch_size": 48, "tokens": 512 * 48, **sizes}
        stages = [stage("s", objective, trainable="mixer", **sizes)]
        teacher = "HuggingFaceTB/SmolLM2-360M"
        return dry_run(small_recipe(teacher, stages=stages), device="cuda").stages[0]

    matrix = 4 * 48 * 15 * 512**2
    plain, mixing = estimate("attention_output"), estimate("matrix_mixing")
    assert mixing.memory - plain.memory > 4 * matrix
    longer = estimate("matrix_mixing", seq_len=1024, batch_size=24)
    assert longer.memory - mixing.memory == pytest.approx(mixing.memory - plain.memory)
    scores = 32 * 2 * 15 * 64 * 512**2 * 48  # QKᵀ of every layer
    assert longer.flops - mixing.flops >= 3 * scores

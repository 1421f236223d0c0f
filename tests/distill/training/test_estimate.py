"""Dry runs need no network and no weights, and parameter counts agree with the papers."""

import pytest
from transformers import LlamaConfig

from evalsuite.distill import dry_run, known_recipes, load_recipe
from evalsuite.distill.training.estimate import CUBLAS_WORKSPACE, recipe_costs
from evalsuite.foundation import ConfigError
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.decoder.cost import ModelCost

SMOLLM2 = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


CONTINUED = {"gap-study-smollm2:regime-a"}
"""They start from students of an earlier command."""


@pytest.mark.parametrize("name", known_recipes())
def test_every_shipped_recipe_has_a_dry_run_offline(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_dry_run(name)


@pytest.mark.long
@pytest.mark.parametrize("name", known_recipes())
def test_every_shipped_variant_has_a_dry_run_offline(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for variant in load_recipe(name).variants:
        if f"{name}:{variant}" in CONTINUED:
            with pytest.raises(ConfigError, match="the shape of 'before-regime-a/kda' is not available"):
                check_dry_run(f"{name}:{variant}")
        else:
            check_dry_run(f"{name}:{variant}")


def check_dry_run(name):
    recipe = load_recipe(name)
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
            assert recipe_costs(small_recipe(name))[0].num_params == pytest.approx(parameters, rel=2e-3)


def test_students_share_the_teacher_forward_only(small_recipe):
    recipe = small_recipe("HuggingFaceTB/SmolLM2-135M")
    one, four = (dry_run(recipe, mixers=["gla"] * number, device="cuda").flops for number in (1, 4))
    assert 2 * one < four < 4 * one


def test_students_hold_activations_at_the_same_time_in_a_graph_only(small_recipe, stage):
    """A graph also has a stream of its own, one of the teacher and one of each student."""
    found = {}
    for packing in ("concat", "documents"):
        stages = [stage("kd", "kd", packing=packing, seq_len=512, batch_size=8, tokens=4096)]
        recipe = small_recipe("HuggingFaceTB/SmolLM2-135M", stages=stages, student={"mixers": ["gla"]})
        found[packing] = dry_run(recipe, mixers=["gla"] * 4, device="cuda").memory
    _, _, (student, *_) = recipe_costs(recipe)
    activations = recipe.stages[0].activation_bytes(student, 2)
    expected = 3 * activations + 10 * CUBLAS_WORKSPACE
    assert found["concat"] - found["documents"] == pytest.approx(expected)


def test_every_student_costs_what_its_own_layers_do(small_recipe, stage):
    """As the suite counts them, for students with other mixers, options and softmax layers."""
    teacher = "HuggingFaceTB/SmolLM2-135M"
    options = {"kda": {"preset": "gendistill"}}
    named = {"hybrid": {"mixer": "gla", "softmax_layers": [0, 9, 29]}}
    stages = [stage("align", "attention_output"), stage("kd", "kd")]
    students = {"mixers": ["kda", "hybrid"], "options": options, "named": named}
    recipe = small_recipe(teacher, student=students, stages=stages)
    _, taught, costs = recipe_costs(recipe)
    base = LlamaConfig(**SMOLLM2)
    kda, hybrid = (
        StudentConfig(base.to_dict(), mixers, {k: v for k, v in options.items() if k in mixers})
        for mixers in (["kda"] * 30, ["softmax" if i in (0, 9, 29) else "gla" for i in range(30)])
    )
    for cost, config in zip([*costs, taught], [kda, hybrid, base], strict=True):
        assert cost.num_params == ModelCost.of(config).num_params
        assert cost.forward_flops(64) == ModelCost.of(config).forward_flops(64)
    assert [len(cost.replaced) for cost in costs] == [30, 27]
    forward = [ModelCost.of(config).forward_flops(64) for config in (kda, hybrid, base)]
    assert dry_run(recipe, device="cuda").stages[1].flops == 512 * (3 * sum(forward[:2]) + forward[2])


RECIPE, HYBRID = "smollm2-135m-instruct-2:tokens-8m", "gap-study-smollm2:uniform"


@pytest.mark.parametrize(
    ("name", "mixer", "stage_name", "gigabytes"),
    [
        (RECIPE, "comba", "align", 2.30),
        (RECIPE, "gated_deltanet_2", "align", 2.74),
        (RECIPE, "rwkv7", "align", 2.44),
        (RECIPE, "comba", "kd", 8.27),
        (RECIPE, "gated_deltanet_2", "kd", 10.08),
        (RECIPE, "rwkv7", "kd", 10.21),
        (RECIPE, "mesanet", "kd", 9.41),
        (HYBRID, "kda", "align", 2.50),
        (HYBRID, "kda", "text", 11.09),
    ],
)
def test_memory_is_near_the_measured_peak(name, mixer, stage_name, gigabytes):
    """Peak of allocated memory (`memory_gb`) of runs on one H200 in bf16; `text` with micro-batches of 16."""
    teacher = "HuggingFaceTB/SmolLM2-135M"
    overrides = [f"teacher={teacher}", f"student.mixers=[{mixer}]"]
    if stage_name == "text":
        overrides.append("stage.text.micro_batch_size=16")
    stages = dry_run(load_recipe(name, overrides), device="cuda").stages
    (memory,) = (stage.memory for stage in stages if stage.name == stage_name)
    assert memory == pytest.approx(gigabytes * 1e9, rel=0.15)


@pytest.mark.parametrize(("rows", "gigabytes"), [(8, 22.6), (4, 17.0), (2, 11.7)])
def test_memory_is_near_the_measured_peak_with_a_large_vocabulary(rows, gigabytes):
    """As above, 8 sequences of 2,048 tokens of Gemma 3 270M's shape in micro-batches (`bench_distill.py`)."""
    overrides = ["student.mixers=[gated_deltanet]", "stage.kd.seq_len=2048", "stage.kd.batch_size=8"]
    recipe = load_recipe("gemma-3-270m", [*overrides, f"stage.kd.micro_batch_size={rows}"])
    (memory,) = (each.memory for each in dry_run(recipe, device="cuda").stages if each.name == "kd")
    assert memory == pytest.approx(gigabytes * 1e9, rel=0.15)


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

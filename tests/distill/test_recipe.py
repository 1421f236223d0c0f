from pathlib import Path

import pytest
import yaml

from evalsuite.distill import known_recipes, load_recipe, write_recipe
from evalsuite.distill.recipe import RECIPES, Recipe, Stage
from evalsuite.foundation import ConfigError

SIZES = {"data": "text", "length": 512, "batch": 8, "lr": 1e-3}
MINIMAL = {
    "name": "minimal",
    "teacher": "org/teacher",
    "data": {"text": {"kind": "local", "files": ["a.jsonl"]}},
    "stages": [
        {"name": "align", "objective": "attention_output", "tokens": "80M", **SIZES},
        {"name": "kd", "objective": "kd", "tokens": 10**6, **SIZES},
    ],
    "variants": {
        "short": {"stage.tokens": "20k"},
        "gla": {"student.mixers": ["gla"], "stage.kd.lr": 5e-4},
    },
}


@pytest.fixture
def write(tmp_path: Path):
    def make(**changes) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
        return path

    return make


def variants(name: str) -> list[str]:
    return [name, *(f"{name}:{variant}" for variant in load_recipe(name).variants)]


@pytest.mark.parametrize("name", [spelled for name in known_recipes() for spelled in variants(name)])
def test_every_published_recipe_and_variant_parses_and_survives_a_round_trip(name, tmp_path):
    recipe = load_recipe(name)
    path = tmp_path / "again.yaml"
    path.write_text(write_recipe(recipe))
    again = load_recipe(path)
    assert again == recipe
    assert again.hash == recipe.hash
    assert all(stage.steps > 0 for stage in recipe.stages)


def test_recipes_are_named_after_their_files():
    for path in RECIPES.glob("*.yaml"):
        assert load_recipe(path).name == path.stem


def test_overrides_reach_all_stages_one_stage_and_the_rest(write):
    recipe = load_recipe(
        write(),
        ["stage.lr=3e-4", "stage.kd.batch=16", "stages.0.length=1024", "seed=7", "student.mixers=[gla, kda]"],
    )
    assert [stage.lr for stage in recipe.stages] == [3e-4, 3e-4]
    assert [stage.batch for stage in recipe.stages] == [8, 16]
    assert [stage.length for stage in recipe.stages] == [1024, 512]
    assert recipe.seed == 7
    assert recipe.student.mixers == ["gla", "kda"]


def test_variants_combine_and_overrides_come_last(write):
    recipe = load_recipe(f"{write()}:short,gla", ["stage.kd.lr=1e-5"])
    assert [stage.tokens for stage in recipe.stages] == [20_000, 20_000]
    assert recipe.student.mixers == ["gla"]
    assert recipe.stages[1].lr == 1e-5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage.lrr=1", r"unknown key 'stages.0.lrr'; did you mean 'lr'"),
        ("stage.lr=fast", r"'stages.0.lr' = 'fast': Input should be a valid number"),
        ("stage.lr=-1", r"greater than 0"),
        ("stage.tokens=many", r"a count of tokens such as 500000, 80M or 1.5B"),
        ("stage.kdd.lr=1", r"unknown stage 'kdd'; did you mean 'kd'"),
        ("stage.7.lr=1", r"there is no stage 7"),
        ("stage.objective=kl", r"'stages.0.objective' = 'kl'"),
        ("techer=x", r"unknown key 'techer'; did you mean 'teacher'"),
        ("stage.loss.temprature=2", r"unknown key 'stages.0.loss.temprature'; did you mean 'temperature'"),
        ("seed", r"expected key=value"),
        ("stage.tokens=1000", r"the budget of 1,000 tokens is smaller than one batch of 8 × 512"),
        ("stage.kd.micro_batch=3", r"'batch' \(8\) is not a multiple of 'micro_batch' \(3\)"),
        ("stage.data=texts", r"data source 'texts' is not defined; did you mean 'text'"),
        ("stage.schedule={warmup: 0.5, decay: 0.9}", r"more than 1"),
        ("stage.align.train=all", r"trains mixers only"),
        ("stage.kd.loss={ce: 0, kl: 0}", r"nothing would be learnt"),
        ("data.text.echo_spans=32", r"'echo_spans' needs 'echo'"),
        ("stage.name=same", r"two stages have one name"),
        ("teacher=null", r"'teacher' is required"),
    ],
)
def test_a_wrong_override_is_refused_by_name(write, override, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(), [override])


def test_unknown_recipes_and_variants_name_the_nearest(write):
    with pytest.raises(ConfigError, match="did you mean 'pocket-teacher'"):
        load_recipe("pocket-teachr")
    with pytest.raises(ConfigError, match="unknown variant 'shrt'; did you mean 'short'"):
        load_recipe(f"{write()}:shrt")


def test_an_architecture_has_no_teacher_and_trains_all_of_itself(write):
    architecture = {
        "tokenizer": "pocket", "hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8,
        "intermediate_size": 8, "max_length": 64,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="has no 'teacher'"):
        load_recipe(write(architecture=architecture))
    with pytest.raises(ConfigError, match="objective sft"):
        load_recipe(write(architecture=architecture, teacher=None))


def test_the_hash_covers_what_decides_the_result_and_nothing_else(write):
    recipe = load_recipe(write())
    changed = {"seed=1", "stage.kd.lr=2e-3", "student.init=vo", "teacher=other/teacher", "precision=fp32"}
    assert len({load_recipe(write(), [change]).hash for change in changed} | {recipe.hash}) == 6
    for same in ("title=x", "saving.state_seconds=1", "variants={}", "sharding=full"):
        assert load_recipe(write(), [same]).hash == recipe.hash


@pytest.mark.parametrize(
    "default",
    [
        "seed=0",
        "stage.clip=1",
        "stage.optimizer={kind: adamw, beta2: 0.95}",
        "stage.schedule.kind=wsd",
        "stage.loss={}",
        "student.mixers=[gated_deltanet]",
        "data.text.shuffle=16384",
    ],
)
def test_a_default_that_is_written_out_hashes_as_one_that_is_not(write, default):
    assert load_recipe(write(), [default]).hash == load_recipe(write()).hash


def test_a_field_of_a_later_version_leaves_old_hashes_alone(write):
    class LaterStage(Stage):
        patience: int = 3

    class LaterRecipe(Recipe):
        stages: list[LaterStage]
        curriculum: str | None = None

    value = {**MINIMAL, "stages": [{**stage, "tokens": 10**6} for stage in MINIMAL["stages"]]}
    assert LaterRecipe.model_validate(value).hash == Recipe.model_validate(value).hash
    assert LaterRecipe.model_validate({**value, "curriculum": "x"}).hash != Recipe.model_validate(value).hash


def test_a_student_without_teacher_needs_its_checkpoint():
    stage = {**MINIMAL["stages"][1], "objective": "sft"}
    value = {**MINIMAL, "teacher": None, "stages": [stage], "variants": {}}
    with pytest.raises(ValueError, match=r"student\.checkpoints"):
        Recipe.model_validate(value)
    Recipe.model_validate({**value, "student": {"checkpoints": {"gated_deltanet": "runs/x"}}})


def test_a_start_names_a_variant_that_exists():
    value = {**MINIMAL, "student": {"checkpoints": {"gated_deltanet": ":gl"}}}
    with pytest.raises(ValueError, match="no variant 'gl'; did you mean 'gla'"):
        Recipe.model_validate(value)


def test_variants_that_share_an_anchor_do_not_share_what_they_change(write):
    stages = [{"name": "tune", "objective": "kd", "tokens": "1M", **SIZES}]
    path = write(variants={"tuned": {"stages": stages}, "full": {"stages": stages, "stage.tune.lr": 1e-5}})
    assert "&" in path.read_text()
    recipe = load_recipe(f"{path}:full")
    assert recipe.stages[0].lr == 1e-5
    assert recipe.variants["tuned"]["stages"][0]["lr"] == SIZES["lr"]


@pytest.mark.parametrize("given", ["abc", "[1M, abc]", "[]", "0", "2.5", "[1M, -2]"])
def test_points_for_checkpoints_are_counts_of_tokens(write, given):
    with pytest.raises(ConfigError, match=r"'saving.checkpoint_tokens' = .*: a count of tokens such as"):
        load_recipe(write(), [f"saving.checkpoint_tokens={given}"])


def test_a_mistake_of_the_whole_is_told_without_the_whole(write):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(), ["student.checkpoints={gla: ':no'}"])
    assert str(caught.value).endswith(
        "with --set: student.checkpoints.gla: there is no variant 'no'; known: gla, short"
    )

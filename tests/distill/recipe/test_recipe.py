"""Recipes: overrides, variants, validation and hashes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.distill import dry_run, known_recipes, load_recipe, write_recipe
from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.objectives.layerwise import AttentionOutput
from evalsuite.distill.recipe import RECIPES, Recipe
from evalsuite.foundation import ConfigError

SIZES = {"data": "text", "seq_len": 512, "batch_size": 8, "lr": 1e-3}
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


def with_variants(name: str) -> list[str]:
    return [name, *(f"{name}:{variant}" for variant in load_recipe(name).variants)]


def most_are_long(names: list[str]) -> list[Any]:
    """A recipe and its first variant, and the others for `make test-all`."""
    return [*names[:2], *(pytest.param(name, marks=pytest.mark.long) for name in names[2:])]


@pytest.mark.parametrize(
    "name", [each for name in known_recipes() for each in most_are_long(with_variants(name))]
)
def test_every_shipped_recipe_and_variant_parses_and_round_trips(name, tmp_path):
    recipe = load_recipe(name)
    path = tmp_path / "again.yaml"
    path.write_text(write_recipe(recipe))
    again = load_recipe(path)
    assert again == recipe
    assert again.hash == recipe.hash
    assert all(stage.steps > 0 for stage in recipe.stages)


def test_recipe_names_equal_file_names():
    for path in RECIPES.glob("*.yaml"):
        assert load_recipe(path).name == path.stem


def test_overrides_apply_to_all_stages_one_stage_or_the_recipe(write):
    recipe = load_recipe(
        write(),
        [
            "stage.lr=3e-4",
            "stage.kd.batch_size=16",
            "stages.0.seq_len=1024",
            "seed=7",
            "student.mixers=[gla, kda]",
        ],
    )
    assert [stage.lr for stage in recipe.stages] == [3e-4, 3e-4]
    assert [stage.batch_size for stage in recipe.stages] == [8, 16]
    assert [stage.seq_len for stage in recipe.stages] == [1024, 512]
    assert recipe.seed == 7
    assert recipe.student.mixers == ["gla", "kda"]


def test_variants_combine_and_overrides_are_applied_last(write):
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
        ("stage.tokens=many", r"expected a token count such as 500000, 80M or 1.5B"),
        ("stage.kdd.lr=1", r"unknown stage 'kdd'; did you mean 'kd'"),
        ("stage.7.lr=1", r"there is no stage 7"),
        ("stage.objective=kl", r"'stages.0.objective' = 'kl'"),
        ("techer=x", r"unknown key 'techer'; did you mean 'teacher'"),
        ("stage.kd.loss.temprature=2", r"unknown key 'stages.1.loss.temprature'; did you mean 'temperature'"),
        ("seed", r"expected key=value"),
        ("stage.tokens=1000", r"the budget of 1,000 tokens is smaller than one batch of 8 × 512"),
        ("stage.kd.micro_batch_size=3", r"'batch_size' \(8\) is not a multiple of 'micro_batch_size' \(3\)"),
        ("stage.data=texts", r"data source 'texts' is not defined; did you mean 'text'"),
        ("stage.schedule={warmup_ratio: 0.5, decay_ratio: 0.9}", r"more than 1"),
        ("stage.align.trainable=all", r"trains mixers only"),
        ("stage.kd.loss={ce: 0, kl: 0}", r"nothing would be learned"),
        ("data.text.repeat_span_tokens=32", r"'repeat_span_tokens' needs 'repeat_chunk_tokens'"),
        ("stage.name=same", r"two stages have the same name"),
        ("teacher=null", r"'teacher' is required"),
    ],
)
def test_invalid_overrides_are_refused_by_name(write, override, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(), [override])


def test_names_of_joined_variants_are_joined():
    name = "smollm2-135m-instruct-2"
    assert load_recipe(f"{name}:late-8k").name == f"{name}.late-8k"
    assert load_recipe(f"{name}:late-8k,seed1").name == f"{name}.late-8k"
    assert load_recipe(f"{name}:late-8k,tokens-8m").name == f"{name}.late-8k-tokens-8m"
    assert load_recipe(f"{name}:late-8k,tokens-8m", ["name=mine"]).name == "mine"


def test_variants_without_a_name_have_one_in_lineages():
    """Else other losses become runs or budgets of one recipe, which seeds and teachers alone are."""

    def lineage_name(variants: str) -> str:
        recipe = load_recipe(f"linearizing-2025:{variants}")
        return recipe.name_of(recipe.labels[0])

    plain = load_recipe("linearizing-2025")
    assert plain.name_of(plain.labels[0]) == "linearizing-2025"
    assert lineage_name("ce-only") == "linearizing-2025.ce-only"
    assert lineage_name("house,10b") == "linearizing-2025.house-10b"
    assert lineage_name("360m") == lineage_name("1.7b") == "linearizing-2025"
    assert lineage_name("1.7b,10b") == "linearizing-2025.10b"
    smol = load_recipe("smollm2-135m-instruct-2:late-8k,seed1")
    assert smol.name_of(smol.labels[0]) == "smollm2-135m-instruct-2.late-8k"


def rows_of_papers() -> list[str]:
    names = ("linearizing-2025", "kd-nine-2025", "gendistill-2026", "kl-guided-2026")
    return [row for name in names for row in with_variants(name)]


def test_every_row_of_a_paper_has_students_of_the_pocket_teacher():
    """With the row's stages, objectives, rates and mixers, and its share of the tokens."""
    built: set[str] = set()
    for name in rows_of_papers():
        row = load_recipe(name)
        plain = load_recipe(name.partition(":")[0])
        recipe = load_recipe(f"{name}{',' if ':' in name else ':'}pocket")
        assert recipe == load_recipe(f"{plain.name}:pocket,{name.partition(':')[2]}"), (
            "it comes after the others"
        )
        assert recipe.hash != row.hash
        assert (recipe.teacher, recipe.labels) == ("pocket", row.labels)
        assert bool(recipe.student.softmax_layers) == bool(row.student.softmax_layers)
        assert recipe.tokens <= 1.05 * 100_000 * max(1, row.tokens / plain.tokens)
        for stage, original in zip(recipe.stages, row.stages, strict=True):
            sizes = {"tokens", "seq_len", "batch_size", "micro_batch_size"}
            assert stage.model_dump(exclude=sizes) == original.model_dump(exclude=sizes)
            assert stage.tokens == max(
                round(original.tokens * 100_000 / sum(s.tokens for s in plain.stages)), 512
            )
        if recipe.student.model_dump_json() not in built:
            assert dry_run(recipe).flops > 0, "its students can be built"
        built.add(recipe.student.model_dump_json())


def test_the_pocket_variant_takes_overrides_and_is_refused_by_recipes_of_teachers(write):
    assert load_recipe("kl-guided-2026:pocket", ["stage.kl.tokens=1k"]).stages[1].tokens == 1000
    assert load_recipe("kl-guided-2026:all-linear,pocket").variant == "all-linear-pocket"
    with pytest.raises(ConfigError, match="'pocket' needs students"):
        load_recipe("pocket-teacher:pocket")
    with pytest.raises(ConfigError, match=r"variants\.pocket: every recipe has"):
        load_recipe(write(variants={"pocket": {"teacher": "pocket"}}))


def test_the_name_of_a_variant_changes_no_hash(tmp_path):
    """Runs that began before go on, and a resolved recipe is read as it was written."""
    recipe = load_recipe("linearizing-2025:ce-only")
    assert recipe.variant == "ce-only"
    assert load_recipe("linearizing-2025:ce-only", ["name=mine"]).variant == ""
    assert recipe.model_copy(update={"variant": ""}).hash == recipe.hash
    path = tmp_path / "recipe.yaml"
    path.write_text(write_recipe(recipe))
    assert load_recipe(path) == recipe
    assert load_recipe(f"{path}:house").variant == "ce-only-house"


@pytest.mark.parametrize("name", known_recipes())
def test_no_two_variants_of_a_recipe_have_one_name(name):
    """Unless they differ in seed, teacher or mixers alone, as runs of one recipe may."""
    base = load_recipe(name)
    recipes = [load_recipe(f"{name}:{variant}") for variant in base.variants]
    apart = {"seed": 0, "teacher": None}
    found: dict[str, set[str]] = {}
    for recipe in (base, *recipes):
        plain = recipe.model_copy(
            update=apart | {"student": recipe.student.model_copy(update={"mixers": []})}
        )
        found.setdefault(recipe.name_of(""), set()).add(plain.hash)
    assert {title: len(hashes) for title, hashes in found.items() if len(hashes) > 1} == {}


def test_unknown_recipes_and_variants_suggest_the_nearest(write):
    with pytest.raises(ConfigError, match="did you mean 'pocket-teacher'"):
        load_recipe("pocket-teachr")
    with pytest.raises(ConfigError, match="unknown variant 'shrt'; did you mean 'short'"):
        load_recipe(f"{write()}:shrt")


def test_an_architecture_has_no_teacher_and_trains_all_parameters(write):
    architecture = {
        "tokenizer": "pocket", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 8, "max_position_embeddings": 64,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="has no 'teacher'"):
        load_recipe(write(architecture=architecture))
    with pytest.raises(ConfigError, match="objective sft"):
        load_recipe(write(architecture=architecture, teacher=None))


def test_hash_covers_exactly_what_affects_the_result(write):
    recipe = load_recipe(write())
    changed = {"seed=1", "stage.kd.lr=2e-3", "student.init=vo", "teacher=other/teacher", "precision=fp32"}
    assert len({load_recipe(write(), [change]).hash for change in changed} | {recipe.hash}) == 6
    for same in (
        "title=x",
        "checkpoint.state_interval_seconds=1",
        "track=tensorboard",
        "variants={}",
        "sharding=full",
        "num_workers=3",
    ):
        assert load_recipe(write(), [same]).hash == recipe.hash


def test_named_students_count_for_the_hash_if_they_are_trained(write):
    recipe = load_recipe(write())
    named = "student.named={wide: {mixer: gated_deltanet, options: {gated_deltanet: {expand_k: 2.0}}}}"
    assert load_recipe(write(), [named]).hash == recipe.hash
    trained = [
        load_recipe(write(), [each, "student.mixers=[wide]"]).hash
        for each in (named, named.replace("2.0", "4.0"))
    ]
    assert len({recipe.hash, *trained}) == 3


@pytest.mark.parametrize(
    "default",
    [
        "seed=0",
        "stage.max_grad_norm=1",
        "stage.optimizer={kind: adamw, beta2: 0.95}",
        "stage.schedule.kind=wsd",
        "stage.kd.loss={}",
        "stage.align.alignment_loss={}",
        "student.mixers=[gated_deltanet]",
        "data.text.shuffle_buffer_size=16384",
    ],
)
def test_explicit_defaults_do_not_change_the_hash(write, default):
    assert load_recipe(write(), [default]).hash == load_recipe(write()).hash


def test_new_fields_do_not_change_existing_hashes(write):
    class LaterAlignment(AttentionOutput):
        patience: int = 3

    class LaterDistillation(KnowledgeDistillation):
        patience: int = 3

    class LaterRecipe(Recipe):
        stages: list[LaterAlignment | LaterDistillation]
        curriculum: str | None = None

    value = {**MINIMAL, "stages": [{**stage, "tokens": 10**6} for stage in MINIMAL["stages"]]}
    assert LaterRecipe.model_validate(value).hash == Recipe.model_validate(value).hash
    assert LaterRecipe.model_validate({**value, "curriculum": "x"}).hash != Recipe.model_validate(value).hash


def test_a_student_without_teacher_needs_an_initial_checkpoint():
    stage = {**MINIMAL["stages"][1], "objective": "sft"}
    value = {**MINIMAL, "teacher": None, "stages": [stage], "variants": {}}
    with pytest.raises(ValueError, match=r"student\.initial_checkpoints"):
        Recipe.model_validate(value)
    Recipe.model_validate({**value, "student": {"initial_checkpoints": {"gated_deltanet": "runs/x"}}})


def test_an_initial_checkpoint_refers_to_an_existing_variant():
    value = {**MINIMAL, "student": {"initial_checkpoints": {"gated_deltanet": ":gl"}}}
    with pytest.raises(ValueError, match="no variant 'gl'; did you mean 'gla'"):
        Recipe.model_validate(value)


def test_variants_sharing_a_yaml_anchor_do_not_share_overrides(write):
    stages = [{"name": "tune", "objective": "kd", "tokens": "1M", **SIZES}]
    path = write(variants={"tuned": {"stages": stages}, "full": {"stages": stages, "stage.tune.lr": 1e-5}})
    assert "&" in path.read_text()
    recipe = load_recipe(f"{path}:full")
    assert recipe.stages[0].lr == 1e-5
    assert recipe.overrides("tuned")["stages"][0]["lr"] == SIZES["lr"]


@pytest.mark.parametrize("given", ["abc", "[1M, abc]", "[]", "0", "2.5", "[1M, -2]"])
def test_save_tokens_must_be_token_counts(write, given):
    with pytest.raises(ConfigError, match=r"'checkpoint.save_tokens' = .*: expected a token count such as"):
        load_recipe(write(), [f"checkpoint.save_tokens={given}"])


def test_a_recipe_level_error_does_not_print_the_recipe(write):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(), ["student.initial_checkpoints={gla: ':no'}"])
    assert str(caught.value).endswith(
        "with --set: student.initial_checkpoints.gla: there is no variant 'no'; known: gla, short"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"packing": "documents"}, "'packing' must be concat, not documents"),
        ({"loss_mask": "completion"}, "'loss_mask' must be full, not completion"),
    ],
)
def test_matrix_mixing_of_parts_of_a_sequence_is_refused(write, setting, message):
    """Its matrices cover a whole sequence: mixing across documents and masked tokens would be trained."""
    mixing = {"name": "mixing", "objective": "matrix_mixing", "tokens": 10**6, **SIZES}
    assert load_recipe(write(stages=[mixing])).stages[0].objective == "matrix_mixing"
    with pytest.raises(
        ConfigError, match=rf"matrix_mixing compares whole sequences: {message}.*attention_output"
    ):
        load_recipe(write(stages=[{**mixing, **setting}]))


def test_only_stages_that_continue_a_source_change_the_hash(write):
    """Hashes of published recipes, whose stages restarted their sources, stay the same."""
    recipe = load_recipe(write())
    restarted = load_recipe(write(), ["stage.kd.restart_data=true"])
    assert restarted.hash == "621d0ab2911acc98"
    assert recipe.hash != restarted.hash
    assert load_recipe(write(), ["stage.restart_data=true"]).hash == restarted.hash
    assert load_recipe(write(), ["stage.align.restart_data=true"]).hash == recipe.hash


@pytest.mark.parametrize(
    ("name", "digest"), [("pocket", "61235a6a137b62ae"), ("smollm2-135m-instruct", "3df1bd4ded4677fb")]
)
def test_published_recipes_restart_their_sources(name, digest):
    assert load_recipe(name).hash == digest
    for variant in with_variants(name):
        assert all(stage.restart_data for stage in load_recipe(variant).stages[1:]), variant


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "'seed' = -1"),
        ("seed=100000000000000000000", "more than 64 bits"),
        ("stage.kd.tokens=1e30", "'stages.1.tokens' = 1000000000000000019884624838656: "),
        ("stage.kd.tokens=inf", "expected a token count"),
        ("checkpoint.save_tokens=[1e30]", "expected a token count"),
        ("student.mixers=[gla, gla]", "'gla' is given twice"),
        ("data.text.seed=-1", "'data.text.seed' = -1"),
    ],
)
def test_numbers_out_of_range_and_repetitions_are_refused(write, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(), [override])
    assert message in str(caught.value)

"""The recipe of the second leaderboard: its students, its disjoint data and its token curve."""

from collections.abc import Iterable

import pytest

from evalsuite.distill import Recipe, load_recipe
from evalsuite.distill.recipe import RECIPES
from evalsuite.models.mixers import MIXERS
from evalsuite.tasks.suite import load_suite, resolve

NAME = "smollm2-135m-instruct-2"


def distinct_text(recipe: Recipe) -> float:
    """Tokens of text: a source that writes every chunk twice has half of them."""
    return sum(
        stage.steps
        * stage.tokens_per_step
        * share
        / (1 if recipe.data[name].repeat_chunk_tokens is None else 2)
        for stage in recipe.stages
        for name, share in stage.mixture.items()
    )


def test_every_mixer_is_a_student_of_one_recipe():
    own = {name for name in MIXERS if MIXERS.origin(name) == "evalsuite"}
    assert set(load_recipe(NAME).student.mixers) == own - {"softmax"}
    assert len(load_recipe(NAME).student.mixers) == 13


@pytest.mark.parametrize(("variant", "millions"), [("tokens-8m", 8), ("", 30), ("tokens-90m", 90)])
def test_the_token_curve_has_complete_schedules_of_distinct_text(variant: str, millions: int):
    recipe = load_recipe(f"{NAME}:{variant}")
    assert distinct_text(recipe) / 1e6 == pytest.approx(millions, rel=0.01)
    shares = [stage.tokens / recipe.tokens for stage in recipe.stages]
    assert shares == pytest.approx([0.333, 0.446, 0.221], abs=0.004)
    align, kd, late = recipe.stages
    for stage, end in ((align, 0), (kd, 1), (late, 0)):
        assert stage.schedule.factor(stage.steps - 1, stage.steps) == end
        assert stage.schedule.factor(stage.steps // 4, stage.steps) > 0.7


def test_stages_are_those_that_were_tuned():
    own, tuned = (load_recipe(name).stages for name in (NAME, "recall-tuning-smollm2:small-batch"))
    settings = ("name", "objective", "batch_size", "lr", "backbone_lr", "schedule", "optimizer", "trainable")
    for first, second in zip(own, tuned, strict=True):
        for key in settings:
            assert getattr(first, key, None) == getattr(second, key, None)


def test_sources_of_the_same_files_are_disjoint():
    data = load_recipe(NAME).data
    parts = {name: (data[name].sample_start, data[name].sample_fraction) for name in data}
    assert parts == {
        "novels": (0.0, 0.8),
        "prose": (0.0, 0.8),
        "echo": (0.8, 0.1),
        "spans": (0.9, 0.1),
        "instruct": (0.0, 1.0),
    }
    assert [name for name in data if data[name].repeat_chunk_tokens] == ["echo", "spans"]
    assert all(source.subset == "train" and source.exclude for source in data.values())
    assert not set(data["novels"].files) & set(data["prose"].files)


def test_text_that_returns_far_away_is_disjoint_from_the_other_sources():
    recipe = load_recipe(f"{NAME}:tokens-8m,late-8k")
    parts = {
        name: (recipe.data[name].sample_start, recipe.data[name].sample_fraction) for name in recipe.data
    }
    assert (parts["spans"], parts["distant"], parts["far"]) == ((0.9, 0.06), (0.96, 0.02), (0.98, 0.02))
    assert {recipe.data[name].repeat_chunk_tokens for name in ("distant", "far")} == {1800, 3600}
    *others, late = recipe.stages
    assert others == load_recipe(f"{NAME}:tokens-8m").stages[:2]
    assert (late.seq_len, late.tokens_per_step) == (8192, 8192)
    assert sum(late.mixture.values()) == pytest.approx(1)


@pytest.mark.parametrize("budget", ["8m", "90m"])
def test_prefixes_are_the_stages_before_the_last(budget: str):
    prefix, whole = (load_recipe(f"{NAME}:{name}-{budget}") for name in ("prefix", "tokens"))
    assert prefix.stages == whole.stages[:2]


def test_last_stages_differ_in_their_loss_and_length_only():
    kl = load_recipe(f"{NAME}:tokens-8m").stages[-1]
    short = load_recipe(f"{NAME}:tokens-8m,short").stages[-1]
    assert short == kl.model_copy(update={"seq_len": 256, "batch_size": 16})
    assert short.tokens_per_step == kl.tokens_per_step
    for name, ce, tokens in (
        ("ce01", 0.1, "all"),
        ("ce03", 0.3, "all"),
        ("right03", 0.3, "teacher_right"),
        ("right10", 1.0, "teacher_right"),
    ):
        recipe = load_recipe(f"{NAME}:tokens-90m,short,{name}")
        assert recipe.name == f"{NAME}.tokens-90m-short-{name}"
        loss = kl.loss.model_copy(update={"ce": ce, "ce_tokens": tokens})
        assert recipe.stages[-1] == short.model_copy(update={"loss": loss, "tokens": 22_800_000})
        assert recipe.stages[:2] == load_recipe(f"{NAME}:tokens-90m").stages[:2]


def test_exclusions_of_the_recipes_that_were_compared_are_all_taken_over():
    def listed(name: str) -> set[str]:
        return set((RECIPES / f"{name}.exclude.txt").read_text().split())

    own = listed(NAME)
    assert {source.exclude for source in load_recipe(NAME).data.values()} == {f"{NAME}.exclude.txt"}
    assert own > listed("smollm2-135m-instruct") | listed("recall-tuning-smollm2") | listed("generator")


def test_hybrids_and_windows_differ_in_their_layers_only():
    recipe = load_recipe(NAME)
    found = {name: recipe.student.of(name) for name in recipe.student.named}
    shapes = {name: each for name, each in found.items() if name.startswith(("hybrid", "window"))}
    assert len(shapes) == 7
    for name, student in shapes.items():
        assert student.mixers == ["kda"]
        assert len(student.softmax_layers) == (int(name[7]) if name.startswith("hybrid") else 0)
        if name != "window-branch":
            assert student.options == recipe.student.options
    windows = found["window-layers"]
    assert windows.layers["sliding_window"] == found["hybrid-8"].softmax_layers
    for options in (
        windows.options["sliding_window"],
        {key.removeprefix("window_"): value for key, value in found["window-branch"].options["kda"].items()},
    ):
        assert (options["window"], options["sinks"]) == (256, 4)


def test_wide_keys_differ_in_the_size_of_the_state_only():
    student = load_recipe(NAME).student
    assert student.of("kda-wide").options["kda"] == {**student.options["kda"], "expand_k": 2.0}


def test_native_layers_have_the_preset_of_their_mixer():
    student = load_recipe(NAME).student
    native = [name for name in student.named if name.endswith("-native")]
    assert native == ["gated_deltanet-native", "kda-native", "gla-native", "mlstm-native"]
    for name in native:
        (mixer,) = student.of(name).mixers
        assert name == f"{mixer}-native"
        assert student.of(name).options[mixer]["preset"] == "native"


def test_the_suite_has_all_of_ruler_and_longbench_and_bear_does_not_lead():
    entries = {benchmark.name: (entry, benchmark) for entry, benchmark in resolve(load_suite(NAME))}
    ruler = [name for name in entries if name.startswith(("niah_", "ruler_"))]
    assert len(ruler) == 13
    lengths = (512, 1024, 2048, 4096, 8192)
    shorter = {"ruler_cwe": lengths[1:], "ruler_qa_2": lengths[2:]}
    assert all(entries[name][0].contexts == shorter.get(name, lengths) for name in ruler)
    assert sum(_needles(ruler, entries)) == 600
    assert sum(name.startswith("longbench_") for name in entries) == 21
    assert [name for name, (entry, _) in entries.items() if entry.not_leading] == ["bear"]


def _needles(names: Iterable[str], entries: dict) -> list[int]:
    return [entries[name][0].limit for name in names if name.startswith("niah_single")]

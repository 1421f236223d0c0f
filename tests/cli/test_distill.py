"""`evalsuite distill`: a recipe and its variants, one folder each."""

import os
from pathlib import Path

import pytest
import yaml

from evalsuite.cli.commands.distill import check_starts, recipes
from evalsuite.cli.entry import build_parser, main
from evalsuite.distill import dry_run, load_recipe
from evalsuite.distill.recipe import RECIPES
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict_yaml import read_yaml

ZOO = "smollm2-135m-instruct"


def chosen(*argv: str):
    return recipes(build_parser().parse_args(["distill", *argv]))


def test_distill_variants_have_their_own_folders():
    found = chosen(ZOO, "--variants", "all", "--mixer", "kda", "--set", "teacher=here")
    names = list(load_recipe(ZOO).variants)
    assert {"hybrid", "seed1", "kda-seed1", "wrong-heads-seed2", "hybrid-sft-full"} <= set(names)
    assert [folder for folder, _, _ in found] == ["", *(f"variants/{name}" for name in names)]
    assert [mixers for _, _, mixers in found] == [["kda"], *[None] * len(names)]
    assert {recipe.teacher for _, recipe, _ in found} == {"here"}
    seeds = {folder: recipe for folder, recipe, _ in found}
    assert seeds["variants/seed1"].seed == 1
    # Other seeds of one recipe go by one name; what differs otherwise has a name of its own.
    assert {seeds[f"variants/{name}"].name for name in ("seed1", "seed2", "kda-seed1")} == {ZOO}
    assert (
        seeds["variants/wrong-heads-seed1"].name == seeds["variants/wrong-heads"].name == f"{ZOO}.wrong-heads"
    )
    assert len({recipe.name for _, recipe, _ in found}) == 9
    assert len({recipe.hash for _, recipe, _ in found}) == len(found)


def test_distill_variant_of_a_variant():
    (_, plain, _), (folder, both, _) = chosen(f"{ZOO}:seed1", "--variants", "wrong-heads")
    assert folder == "variants/wrong-heads"
    assert (plain.seed, plain.student.init) == (1, "qkvo")
    assert (both.seed, both.student.init) == (1, "qkvo_heads_of_32")


def test_distill_refuses_two_variants_that_train_the_same_students(tmp_path):
    """Whatever they are called; a variant that is stated to be another one is left out of `all`."""
    recipe = read_yaml(RECIPES / "kl-guided-2026.yaml")
    recipe["variants"] = {
        "gla": {"student.mixers": ["gla"]},
        "other": {"student": {**recipe["student"], "mixers": ["gla"]}, "name": "other"},
        "again": "gla",
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    for names in (["all"], ["gla", "other"], ["gla", "again"]):
        with pytest.raises(ConfigError, match=r"variants 'gla' and '(other|again)' train the same students"):
            chosen(str(path), "--variants", *names)
    del recipe["variants"]["other"]
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert [folder for folder, _, _ in chosen(str(path), "--variants", "all")] == ["", "variants/gla"]
    assert load_recipe(f"{path}:again") == load_recipe(f"{path}:gla")
    recipe["variants"]["more"] = "again"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    with pytest.raises(ConfigError, match=r"variants\.more: 'again' is no variant with overrides of its own"):
        load_recipe(path)


def test_distill_orders_variants_by_dependency():
    found = chosen(ZOO, "--variants", "hybrid-sft-full", "hybrid-kd-full", "hybrid")
    assert [folder for folder, _, _ in found][1:] == [
        "variants/hybrid",
        "variants/hybrid-kd-full",
        "variants/hybrid-sft-full",
    ]
    (_, kd), (_, sft) = [(folder, recipe.stages[0]) for folder, recipe, _ in found[2:]]
    assert (kd.objective, kd.loss_mask, sft.objective, sft.loss_mask) == ("kd", "full", "sft", "full")
    check_starts(found, Path("nowhere"))


def test_distill_refuses_missing_start_before_training(tmp_path):
    command = [
        "distill",
        ZOO,
        "--variants",
        "hybrid-kd-full",
        "--set",
        "teacher=pocket",
        "--out",
        str(tmp_path),
    ]
    assert main(command) == 64
    assert not list(tmp_path.iterdir())
    made = tmp_path / "variants/hybrid/gated_deltanet"
    made.mkdir(parents=True)
    (made / "lineage.json").touch()
    check_starts(chosen(*command[1:-2]), tmp_path)


def test_distill_dry_run_has_a_row_a_variant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("EVALSUITE_DATA", "elsewhere")
    command = ["distill", ZOO, "--variants", "hybrid", "seed1", "--data", str(tmp_path), "--device", "cuda"]
    assert main([*command, "--dry-run"]) == 0
    assert os.environ["EVALSUITE_DATA"] == str(tmp_path)
    title, _, *rows, _ = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [ZOO, "hybrid", "seed1"]
    assert "gated_deltanet, kda, mlstm, gla, deltanet, retnet, linear_attention  " in rows[0]
    assert rows[1].split()[1] == "gated_deltanet"
    costs = [dry_run(recipe, mixers=mixers, device="cuda") for _, recipe, mixers in chosen(*command[1:5])]
    assert title.startswith(f"3 runs on one H200-class GPU: {sum(cost.flops for cost in costs):.1e} FLOPs")
    for row, cost in zip(rows, costs, strict=True):
        assert f" {cost.tokens:,} " in row
    assert main([*command[:2], "--device", "cuda", "--dry-run"]) == 0
    assert f"{ZOO}: gated_deltanet, kda, mlstm" in capsys.readouterr().out


def test_distill_variants_take_the_mixers_of_the_command_line():
    """A variant that names mixers keeps its own: they are what it varies."""
    found = chosen("kd-nine-2025", "--variants", "plain", "mm", "--mixer", "gla")
    assert [mixers for _, _, mixers in found] == [["gla"], ["gla"], ["gla"]]
    found = chosen("kl-guided-2026", "--variants", "gla", "all-linear", "--mixer", "kda")
    assert [mixers for _, _, mixers in found] == [["kda"], None, ["kda"]]
    assert found[1][1].student.mixers == ["gla"]


def test_a_pattern_names_every_row_once():
    """t14-0 is a further name of t6-unfrozen."""

    def rows(*patterns: str) -> list[str]:
        return [Path(folder).name for folder, _, _ in chosen("gendistill-2026", "--variants", *patterns)][1:]

    assert rows("t14-*") == ["t14-0", "t14-0.1", "t14-0.035", "t14-0.01"]
    assert rows("t14-*", "t6-*") == ["t6-frozen", "t6-unfrozen", *rows("t14-*")[1:]]
    with pytest.raises(ConfigError, match=r"unknown variant 't7-\*'"):
        rows("t7-*")


def test_the_tracker_applies_to_the_recipe_and_its_variants():
    found = chosen("kl-guided-2026", "--variants", "gla", "--track", "trackio")
    assert [recipe.track for _, recipe, _ in found] == ["trackio", "trackio"]
    assert [recipe.track for _, recipe, _ in chosen("kl-guided-2026")] == [None]

"""`evalsuite distill`: a recipe and its variants, one folder each."""

import os

import pytest

from evalsuite.cli.distill import recipes
from evalsuite.cli.entry import build_parser, main

ZOO = "smollm2-135m-instruct"


def chosen(*argv: str):
    return recipes(build_parser().parse_args(["distill", *argv]))


def test_variants_come_after_the_recipe_each_in_a_folder_of_its_own():
    found = chosen(ZOO, "--variants", "all", "--mixer", "kda", "--set", "teacher=here")
    assert [folder for folder, _, _ in found] == [
        "",
        *(
            f"variants/{name}"
            for name in (
                "hybrid",
                "seed1",
                "seed2",
                "kl-only",
                "wrong-heads",
                "kl-times-length",
            )
        ),
    ]
    assert [mixers for _, _, mixers in found] == [["kda"], *[None] * 6]
    assert {recipe.teacher for _, recipe, _ in found} == {"here"}
    seeds = {folder: recipe for folder, recipe, _ in found}
    assert seeds["variants/seed1"].seed == 1
    # Other seeds of one recipe go by one name; what differs otherwise has a name of its own.
    assert {recipe.name for folder, recipe, _ in found if "seed" in folder} == {ZOO}
    assert len({recipe.name for _, recipe, _ in found}) == 5
    assert len({recipe.hash for _, recipe, _ in found}) == 7


def test_one_variant_of_a_variant():
    (_, plain, _), (folder, both, _) = chosen(f"{ZOO}:seed1", "--variants", "wrong-heads")
    assert folder == "variants/wrong-heads"
    assert (plain.seed, plain.student.kv_expansion) == (1, "heads")
    assert (both.seed, both.student.kv_expansion) == (1, "head_size_32")


def test_a_dry_run_adds_up_what_all_of_them_cost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("EVALSUITE_DATA", "elsewhere")
    command = ["distill", ZOO, "--variants", "hybrid", "seed1", "--data", str(tmp_path), "--device", "cuda"]
    assert main([*command, "--dry-run"]) == 0
    assert os.environ["EVALSUITE_DATA"] == str(tmp_path)
    out = capsys.readouterr().out
    assert "gated_deltanet, kda, mlstm, gla, deltanet, retnet, linear_attention from" in out
    assert f"{ZOO}.hybrid: gated_deltanet from" in out
    assert out.rstrip().splitlines()[-1].startswith("3 runs: ")

"""What every variant of every shipped recipe trains, pinned by a stored table.

    python -m tests.distill.test_variants_table      writes the table anew, for a change that is meant

The hash pins everything that determines the weights; the other columns can be read against the papers.
"""

from copy import deepcopy
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from evalsuite.distill import Recipe, known_recipes, load_recipe
from evalsuite.foundation.strict_yaml import read_yaml

READ = cache(read_yaml)
"""Parsing a recipe takes longer than resolving a variant of it."""
TABLE = Path(__file__).with_name("variants_table.txt")


def described(name: str, recipe: Recipe) -> str:
    stages = (
        f"{stage.name}={stage.objective}"
        f"({'+'.join(stage.mixture)},{stage.tokens / 1e6:g}M,{stage.trainable_set})"
        for stage in recipe.stages
    )
    student = recipe.student
    layers = student.softmax_layers
    start = "continues" if student.initial_checkpoints else student.init
    softmax = layers if isinstance(layers, str) else ",".join(map(str, layers))
    if student.softmax_heads:
        softmax += f" heads {student.softmax_heads}"
    return " | ".join(
        (name, recipe.hash, " ".join(recipe.labels), start, f"softmax [{softmax}]", " ".join(stages))
    )


@patch("evalsuite.distill.recipe.recipe.read_yaml", side_effect=lambda path: deepcopy(READ(path)))
def table(_: object) -> dict[str, str]:
    lines = {}
    for name in known_recipes():
        recipe = load_recipe(name)
        lines[name] = described(name, recipe)
        for variant, given in recipe.variants.items():
            full = f"{name}:{variant}"
            # A further name of a variant is stated as such, not loaded again.
            lines[full] = (
                f"{full} = {given}" if isinstance(given, str) else described(full, load_recipe(full))
            )
    return lines


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return table()


def test_every_variant_trains_what_the_table_says(found: dict[str, str]) -> None:
    stored = {line.split(" ")[0]: line for line in TABLE.read_text().splitlines()}
    assert sorted(found) == sorted(stored)
    assert [found[name] for name in found if found[name] != stored[name]] == []


def test_no_two_variants_of_a_recipe_train_the_same(found: dict[str, str]) -> None:
    """A row that occurs in several tables of a paper is written once; `{}` is the recipe itself."""
    trained: dict[tuple[str, str], str] = {}
    for name, line in found.items():
        recipe, _, variant = name.partition(":")
        if variant and " | " in line:
            before = trained.setdefault((recipe, line.split(" | ")[1]), variant)
            assert before == variant, f"{recipe}: '{before}' and '{variant}'"


def test_qkv_mm_h2h_mixes_matrices_and_aligns_hidden_states_of_copied_projections() -> None:
    """Best row of Table 3 of arXiv 2504.14366v1: 80M and 80M tokens of alignment, 1B in all."""
    recipe = load_recipe("kd-nine-2025:qkv-mm-h2h")
    objectives = [(stage.objective, stage.tokens) for stage in recipe.stages]
    assert objectives == [("matrix_mixing", 80e6), ("hidden_state", 80e6), ("kd", 840e6)]
    assert (recipe.student.init, recipe.student.mixers) == ("qkv", ["mlstm", "gla"])
    assert recipe.hash != load_recipe("kd-nine-2025:qkv").hash


if __name__ == "__main__":
    TABLE.write_text("".join(f"{line}\n" for line in table().values()))

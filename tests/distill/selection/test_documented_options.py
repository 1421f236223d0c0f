"""The commands of docs/how-to/select-layers.md are valid, and set every option of evalsuite's selectors."""

import shlex
from pathlib import Path

import pytest

from evalsuite.distill import load_recipe
from evalsuite.distill.recipe import known_recipes
from evalsuite.distill.selection import SELECTORS, Selector, load_selector
from evalsuite.distill.selection.selectors.fixed_sets import published_sets
from evalsuite.tasks.benchmark import known_benchmarks

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "select-layers.md"
COMMANDS = [line for line in PAGE.read_text().splitlines() if line.startswith("evalsuite select")]


def selector_of(command: str) -> Selector:
    words = shlex.split(command)
    options = words[words.index("--option") + 1 : words.index("--out")] if "--option" in words else []
    if "--selector" in words:
        return load_selector(words[words.index("--selector") + 1], options)
    planned = load_recipe(words[2]).selection
    assert planned is not None
    return load_selector(planned.selector, options, planned.options)


@pytest.mark.parametrize("name", known_recipes())
def test_the_selection_of_a_recipe_is_valid(name):
    recipe = load_recipe(name)
    if recipe.selection is not None:
        selector = load_selector(recipe.selection.selector, (), recipe.selection.options)
        assert selector.data is None or selector.data in recipe.data


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_is_valid(command):
    assert load_recipe(shlex.split(command)[2])
    selector = selector_of(command)
    assert getattr(selector, "set", None) in (None, *published_sets())
    assert getattr(selector, "knowledge", None) in (None, *known_benchmarks())


def test_every_option_is_set_by_a_documented_command():
    found = {key for command in COMMANDS for key in selector_of(command).model_fields_set}
    own = [name for name in SELECTORS if SELECTORS.origin(name) == "evalsuite"]
    assert found == {key for name in own for key in SELECTORS[name].model_fields}

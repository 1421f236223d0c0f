"""A selection context with a tiny teacher and all-linear student."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.options import Options

SMALL: dict[str, Any] = {
    "num_examples": 6,
    "num_pairs": 8,
    "held_out": 2,
    "snapshot_interval": 1,
    "tokens": 512,
    "align_tokens": 512,
    "window": 3,
}


@pytest.fixture(scope="session")
def options() -> Callable[..., Options]:
    return lambda **changes: Options(**{**SMALL, **changes})


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One work folder for all tests, so that the all-linear student is trained once."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def recipe(small_recipe: Callable[..., Recipe], teacher_folder: Path) -> Recipe:
    return small_recipe(teacher_folder)


@pytest.fixture
def context(recipe: Recipe, options: Callable[..., Options], work: Path) -> SelectionContext:
    built = SelectionContext(recipe, options(), work, device="cpu", quiet=True)
    assert built.all_linear is not None  # before any test turns gradients off
    return built

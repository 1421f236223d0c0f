"""A ground on the tiny teacher, with a trunk that takes a second to make."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.options import Options

SMALL: dict[str, Any] = {
    "examples": 6,
    "pairs": 8,
    "held_out": 2,
    "every": 1,
    "tokens": 512,
    "align_tokens": 512,
    "window": 3,
}


@pytest.fixture(scope="session")
def options() -> Callable[..., Options]:
    return lambda **changes: Options(**{**SMALL, **changes})


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests, so that the trunk is made once."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def recipe(small_recipe: Callable[..., Recipe], teacher_folder: Path) -> Recipe:
    return small_recipe(teacher_folder)


@pytest.fixture
def ground(recipe: Recipe, options: Callable[..., Options], work: Path) -> Ground:
    made = Ground(recipe, options(), work, device="cpu", quiet=True)
    assert made.trunk is not None  # before any test turns gradients off
    return made

"""A selection context with a tiny teacher and all-linear student."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.selection import SELECTORS, Selector
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.options import ContextOptions

SMALL: dict[str, Any] = {
    "num_examples": 6,
    "num_pairs": 8,
    "held_out": 2,
    "snapshot_interval": 1,
    "tokens": 512,
    "align_tokens": 512,
    "window": 3,
    "tasks": ["pocket_passage"],
}


def small_selector(name: str, **changes: Any) -> Selector:
    """A selector with small settings."""
    kind = SELECTORS[name]
    small = {key: value for key, value in SMALL.items() if key in kind.model_fields}
    return kind(**{**small, **changes})


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One work folder for all tests, so that the all-linear student is trained once."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def recipe(small_recipe: Callable[..., Recipe], teacher_folder: Path) -> Recipe:
    return small_recipe(teacher_folder)


@pytest.fixture(scope="session")
def opened(small_recipe: Callable[..., Recipe], teacher_folder: Path, work: Path) -> SelectionContext:
    """A context that has loaded its models, for tests to copy."""
    torch.set_num_threads(1)
    options = ContextOptions(held_out=SMALL["held_out"])
    built = SelectionContext(small_recipe(teacher_folder), options, work, device="cpu", quiet=True)
    assert built.all_linear is not None
    return built


def with_models_of(other: SelectionContext, context: SelectionContext) -> SelectionContext:
    """A context with copies of another one's models, which it would load."""
    context.models, context.all_linear = copy.deepcopy((other.models, other.all_linear))
    return context


@pytest.fixture
def context(opened: SelectionContext) -> SelectionContext:
    return with_models_of(opened, copy.copy(opened))

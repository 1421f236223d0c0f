"""A teacher of a few thousand parameters, and recipes small enough to run in a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.distill.recipe import Architecture, Recipe
from evalsuite.distill.setup import architecture_tokenizer, from_architecture

TINY = Architecture(
    tokenizer="pocket",
    hidden_size=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_length=512,
    initial_std=0.2,
)


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share two cores with each other; torch's threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return architecture_tokenizer(TINY)


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    model = from_architecture(TINY, len(tokenizer), tokenizer, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def teacher(tokenizer: Any) -> Any:
    return from_architecture(TINY, len(tokenizer), tokenizer, seed=0).eval().requires_grad_(False)


@pytest.fixture(scope="session")
def stage() -> Callable[..., dict[str, Any]]:
    """A function that writes a stage: four steps of two sequences of 64 tokens, unless told otherwise."""

    def make(name: str, objective: str, **changes: Any) -> dict[str, Any]:
        value = {
            "name": name,
            "objective": objective,
            "data": "pocket",
            "tokens": 512,
            "length": 64,
            "batch": 2,
        }
        return {**value, "lr": 1e-3, **changes}

    return make


@pytest.fixture(scope="session")
def small_recipe(stage: Callable[..., dict[str, Any]]) -> Callable[..., Recipe]:
    """A function that makes a recipe: attention-output, hidden-state and KD stages on the pocket world."""

    def make(teacher: Path | str | None, **changes: Any) -> Recipe:
        value: dict[str, Any] = {
            "name": "small",
            "teacher": None if teacher is None else str(teacher),
            "student": {"mixers": ["gated_deltanet"]},
            "data": {"pocket": {"kind": "pocket", "longest": 128}},
            "stages": [
                stage("mixer", "attention_output"),
                stage("block", "hidden_state"),
                stage("kd", "kd"),
            ],
        }
        return Recipe.model_validate({**value, **changes})

    return make

"""A teacher of a few thousand parameters, and recipes small enough to run in a second."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalsuite.distill.data import documents, preparation, readers, side_by_side
from evalsuite.distill.data.examples import Example
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.config import ArchitectureConfig
from evalsuite.distill.recipe.data_sources import PocketSourceConfig
from evalsuite.distill.training.builders import load_architecture_tokenizer
from tests.distill.random_models import build_random_model
from tests.models.conftest import one_thread as one_thread

TINY = ArchitectureConfig(
    tokenizer="pocket",
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_position_embeddings=512,
    initializer_range=0.2,
)


@pytest.fixture(scope="session", autouse=True)
def texts_drawn_once() -> Iterator[None]:
    """Draw each text of the pocket corpus once: it depends on its number and the source's settings only."""
    draw, known = preparation._pocket_examples, {}

    def drawn(source: PocketSourceConfig, numbers: range) -> Sequence[Example]:
        key = source.model_dump_json(), numbers
        if key not in known:
            known[key] = draw(source, numbers)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_pocket_examples", drawn)
        yield


@pytest.fixture(scope="session", autouse=True)
def small_groups() -> Iterator[None]:
    """Prepare a few documents at a time: stages of these tests train on a few hundred tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (readers, side_by_side):
            patch.setattr(module, "CHUNK_ROWS", 32)
        patch.setattr(documents, "POCKET_SHARD_SIZE", 64)
        patch.setattr(documents, "GROUP_SIZE", 32)
        yield


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return load_architecture_tokenizer(TINY)


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    model = build_random_model(TINY, len(tokenizer), tokenizer, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def teacher(tokenizer: Any) -> Any:
    return build_random_model(TINY, len(tokenizer), tokenizer, seed=0).eval().requires_grad_(False)


@pytest.fixture(scope="session")
def stage() -> Callable[..., dict[str, Any]]:
    """Factory of stages, by default four steps of two sequences of 64 tokens."""

    def make(name: str, objective: str, **changes: Any) -> dict[str, Any]:
        value = {
            "name": name,
            "objective": objective,
            "data": "pocket",
            "tokens": 512,
            "seq_len": 64,
            "batch_size": 2,
        }
        return {**value, "lr": 1e-3, **changes}

    return make


@pytest.fixture(scope="session")
def small_recipe(stage: Callable[..., dict[str, Any]]) -> Callable[..., Recipe]:
    """Factory of recipes with attention-output, hidden-state and KD stages on the pocket corpus."""

    def make(teacher: Path | str | None, **changes: Any) -> Recipe:
        value: dict[str, Any] = {
            "name": "small",
            "teacher": None if teacher is None else str(teacher),
            "student": {"mixers": ["gated_deltanet"]},
            "data": {"pocket": {"kind": "pocket", "max_haystack_tokens": 128}},
            "stages": [
                stage("mixer", "attention_output"),
                stage("block", "hidden_state"),
                stage("kd", "kd"),
            ],
        }
        return Recipe.model_validate({**value, **changes})

    return make

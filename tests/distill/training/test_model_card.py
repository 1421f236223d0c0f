"""The model card in a student's folder: only what recipe and lineage state, in valid front matter."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from evalsuite.distill import Recipe, distill
from evalsuite.distill.training.model_card import model_card
from evalsuite.foundation.model_card import read_card
from evalsuite.foundation.strict import parse


def lineage(**changes: Any) -> dict[str, Any]:
    return {
        "label": "gla",
        "mixers": ["softmax", "gla", "gla"],
        "teacher": {"path": "org/teacher", "weights_id": "abc", "ancestors": []},
        "ancestors": [],
        "recipe": {"name": "mine", "hash": "123", "source": "arXiv 2504.14366"},
        "seed": 3,
        "selection": None,
        "stages": [
            {
                "name": "kd",
                "objective": "kd",
                "trainable": "all",
                "tokens": 80_000_000,
                "seq_len": 1024,
                "lr": 1.5e-3,
            }
        ],
        "tokens": 80_000_000,
        "distinct_tokens": 60_000_000,
        "total_tokens": 90_000_000,
        "complete": True,
        "precision": "bf16",
        "device": "one GPU",
        "versions": {"torch": "2.13"},
        "created": "2026-01-02T03:04:05+00:00",
        **changes,
    }


def recipe(teacher: str = "org/teacher", **source: Any) -> Recipe:
    hub = {} if "kind" in source else {"kind": "hub", "dataset": "org/text", "split": "train"}
    value = {
        "name": "mine",
        "title": "Mine",
        "source": "arXiv 2504.14366",
        "teacher": teacher,
        "student": {"mixers": ["gla"]},
        "data": {"text": {**hub, **source}},
        "stages": [
            {
                "name": "kd",
                "objective": "kd",
                "data": "text",
                "tokens": "80M",
                "seq_len": 1024,
                "batch_size": 8,
                "lr": 1e-3,
            }
        ],
    }
    return parse(value, Recipe, "mine.yaml")


def test_the_front_matter_is_what_the_hub_reads() -> None:
    card = ModelCard(model_card(lineage(), recipe()))
    assert card.data.base_model == ["org/teacher"]
    assert card.data.datasets == ["org/text"]
    assert card.data.library_name == "transformers"
    assert {"evalsuite", "distillation", "gla"} <= set(card.data.tags)
    assert card.data.license is None
    pinned = {"path": "org/teacher@1a2b", "weights_id": "abc", "ancestors": []}
    text = model_card(lineage(teacher=pinned), recipe("org/teacher@1a2b", revision="3c4d"))
    assert ModelCard(text).data.base_model == ["org/teacher"]
    assert "A student of org/teacher@1a2b" in text
    assert "revision 3c4d" in text


def test_the_card_states_lineage_and_tokens() -> None:
    ancestor = {"label": "first", "weights_id": "def", "tokens": 10_000_000, "recipe": {"name": "older"}}
    text = model_card(lineage(ancestors=[ancestor]), recipe())
    assert "Layers: 2 × gla, 1 × softmax." in text
    assert "| teacher | org/teacher (weights abc) |" in text
    assert "| ancestor 1 | first (weights def, 10,000,000 tokens, recipe older) |" in text
    assert "80,000,000 tokens, 60,000,000 of them distinct (90,000,000 with the ancestors' training)." in text
    assert "intermediate checkpoint" not in text
    assert "intermediate checkpoint" in model_card(lineage(complete=False), recipe())


def test_nothing_is_claimed_that_was_not_measured() -> None:
    text = model_card(lineage(), recipe())
    assert "## Distillation Loss Statement\n\nNot measured." in text
    assert "## Overlap with benchmarks\n\nNot measured for text." in text


def test_measured_overlap_is_stated(tmp_path: Path) -> None:
    (tmp_path / "overlap.csv").write_text(
        "benchmark,documents,long_enough,overlapping,share\narc_easy,2376,1900,17,0.0072\n"
    )
    (tmp_path / "overlap-exclude.txt").write_text("0123456789abcdef\n")
    text = model_card(lineage(), recipe(exclude=str(tmp_path / "overlap-exclude.txt")))
    assert "| arc_easy | 2376 | 17 |" in text
    assert "Not measured for" not in text
    assert str(tmp_path) not in text


def test_local_paths_are_reduced_to_names(tmp_path: Path) -> None:
    teacher = tmp_path / "secret" / "teacher"
    teacher.mkdir(parents=True)
    (teacher / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Teacher\n")
    files = [f"{tmp_path}/corpora/*.jsonl.zst"]
    of_teacher = {"path": str(teacher), "weights_id": "abc", "ancestors": []}
    text = model_card(lineage(teacher=of_teacher), recipe(str(teacher), kind="local", files=files))
    front_matter, _ = read_card(text, "card")
    assert front_matter["license"] == "apache-2.0"
    assert "base_model" not in front_matter
    assert "files *.jsonl.zst" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize("content", ["---\n- a\n---\n", "---\nlicense: [\n---\n", "no front matter"])
def test_a_teachers_odd_card_states_no_license(tmp_path: Path, content: str) -> None:
    (tmp_path / "README.md").write_text(content)
    assert "license" not in read_card(model_card(lineage(), recipe(str(tmp_path))), "card")[0]


def test_distill_writes_the_card(teacher_folder: Path, tmp_path: Path, small_recipe: Any) -> None:
    (folder,) = distill(small_recipe(teacher_folder), tmp_path / "out", quiet=True, device="cpu")
    card = ModelCard.load(folder / "README.md")
    assert "distillation" in card.data.tags
    assert f"# {folder.name}\n" in card.text

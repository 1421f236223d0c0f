"""A student as the teacher gives its own targets: the distance of a student to itself is 0."""

from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.distill import distill
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.training.held_out import HeldOut, held_out_batches
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError, read_jsonl
from evalsuite.models import build_student, load_checkpoint
from tests.distill.objectives.test_families import make_teacher

WINDOW = {"sliding_window": {"window": 5}}
STUDENTS: dict[str, list[str]] = {
    "windows": ["sliding_window"] * 3,
    "recurrent": ["gated_deltanet"] * 3,
    "hybrid": ["gla", "softmax", "sliding_window"],
}


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path, tokenizer: Any
) -> dict[str, Path]:
    """Students with random mixers, by kind."""
    found = {}
    for kind, mixers in STUDENTS.items():
        folder = found[kind] = tmp_path_factory.mktemp(kind)
        options = {name: value for name, value in WINDOW.items() if name in mixers}
        student: Any = build_student(load_checkpoint(teacher_folder).model, mixers, options=options, seed=1)
        student.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return found


@pytest.mark.parametrize("packing", ["concat", "documents"])
@pytest.mark.parametrize("kind", STUDENTS)
def test_a_student_has_no_distance_from_itself(
    folders: dict[str, Path], small_recipe: Any, stage: Any, tmp_path: Path, kind: str, packing: str
) -> None:
    """In layerwise stages, in end-to-end ones, and on held-out documents."""
    student = {
        "mixers": ["gated_deltanet"],
        "initial_checkpoints": {"gated_deltanet": str(folders[kind])},
    }
    same = {"packing": packing, "lr": 1e-12, "tokens": 256}
    recipe = small_recipe(
        folders[kind],
        student=student,
        stages=[
            stage("mixer", "attention_output", **same),
            stage("block", "hidden_state", alignment_loss={"squared": True}, **same),
            stage("kd", "kd", optimizer={"weight_decay": 0}, **same),
        ],
        validation={"every_steps": 1, "tokens": 128},
    )
    distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    rows = list(read_jsonl(tmp_path / "out" / "metrics.jsonl"))
    assert [row["stage"] for row in rows] == ["mixer"] * 2 + ["block"] * 2 + ["kd"] * 2
    for row in rows:
        assert row["loss"] == pytest.approx(0, abs=1e-6)
        assert row["validation_kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("packing", ["concat", "documents"])
@pytest.mark.parametrize("kind", STUDENTS)
def test_training_and_held_out_targets_are_the_same(
    folders: dict[str, Path], small_recipe: Any, stage: Any, tokenizer: Any, kind: str, packing: str
) -> None:
    recipe = small_recipe(folders[kind], stages=[stage("kd", "kd", packing=packing)])
    teacher: Any = load_checkpoint(folders[kind]).model.eval()
    batches = held_out_batches(recipe, recipe.stages[0], tokenizer, 2, torch.device("cpu"))
    held_out = HeldOut(teacher, batches)
    with torch.no_grad():
        for batch, target in zip(batches, held_out._targets, strict=True):
            found = batch.select(hidden_states(teacher, batch))
            torch.testing.assert_close(found, target, rtol=0, atol=0)
    assert held_out.kl(teacher) == pytest.approx(0, abs=1e-7)
    assert held_out.hidden_distances({0: teacher})[0] == 0


@torch.no_grad()
def test_a_student_of_a_teacher_with_windows_gives_its_own_targets() -> None:
    student: Any = build_student(make_teacher("gemma3_text"), ["gated_deltanet", "softmax"], seed=1).eval()
    ids = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    batch = MicroBatch(ids, ids)
    wanted = student.model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(hidden_states(student, batch), wanted, rtol=0, atol=0)


def test_a_recurrent_teacher_has_no_attention_matrices(
    folders: dict[str, Path], small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    student = {
        "mixers": ["gated_deltanet"],
        "initial_checkpoints": {"gated_deltanet": str(folders["hybrid"])},
    }
    stages = [stage("matrix", "matrix_mixing", tokens=128)]
    with pytest.raises(ConfigError, match=r"stage 'matrix': .* needs attention matrices, which a layer of"):
        distill(
            small_recipe(folders["recurrent"], student=student, stages=stages),
            tmp_path / "out",
            device="cpu",
            quiet=True,
        )

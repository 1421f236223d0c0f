"""Gradients do not depend on how the global batch is split into micro-batches and over processes."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.models import build_student
from tests.distill.training.two_processes import needs_loopback, run_both

ROWS, LENGTH = 8, 16
LAYERWISE = ["attention_output", "hidden_state"]


def split(micro_batch_size: int, rank: int = 0, world_size: int = 1) -> GlobalBatch:
    """This process' micro-batches of eight rows, whose masks differ in length."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(8, 500, (ROWS, LENGTH + 1), generator=generator)
    in_loss = torch.arange(LENGTH) < torch.tensor([[16], [16], [3], [9], [1], [16], [12], [5]])
    own = torch.arange(rank, ROWS, world_size)
    batches = [
        MicroBatch(tokens[rows, :-1], tokens[rows, 1:], in_loss[rows].flatten().nonzero()[:, 0])
        for rows in own.split(micro_batch_size)
    ]
    return GlobalBatch(batches, int(in_loss.sum()), ROWS * LENGTH, {})


def gradient(
    teacher: Any, stage: Stage, process_group: ProcessGroup, batch: GlobalBatch, *, trial: bool = False
) -> tuple[Tensor, Tensor]:
    """Losses and gradients of one step of two students, one of them a hybrid."""
    students = (build_student(teacher, mixers, seed=1) for mixers in ("gla", ["softmax", "retnet", "gla"]))
    train_states = [
        StudentTrainState(str(number), student.train()) for number, student in enumerate(students)
    ]
    for train_state in train_states:
        train_state.begin_stage(stage)
    train_step = TrainStep(teacher, train_states, stage, process_group)
    if trial:
        train_step.trial(batch)
    losses = train_step(batch, 0)["loss"]
    return losses, torch.cat([train_state.flat_grads.buffer for train_state in train_states])


def layerwise_stage(stage: Any, objective: str, *, normalize: bool = True) -> Stage:
    return Stage.model_validate(
        stage("s", objective, max_grad_norm=None, alignment_loss={"normalize_by_teacher": normalize})
    )


def assert_equal(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6 * expected[1].abs().max().item())


@pytest.mark.parametrize("objective", LAYERWISE)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_micro_batches_do_not_change_the_gradient(teacher, stage, objective, normalize, micro_batch_size):
    chosen, one = layerwise_stage(stage, objective, normalize=normalize), ProcessGroup("cpu")
    expected = gradient(teacher, chosen, one, split(ROWS))
    assert expected[1].abs().max() > 0
    assert_equal(gradient(teacher, chosen, one, split(micro_batch_size)), expected)


def test_the_normalized_loss_of_a_silent_student_is_one(teacher, stage):
    """A student whose mixers output 0 is as far from the teacher as the teacher's output is large."""
    chosen = layerwise_stage(stage, "attention_output")
    student = build_student(teacher, "gla", seed=1).train()
    for layer in student.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    train_state = StudentTrainState("silent", student)
    train_state.begin_stage(chosen)
    columns = TrainStep(teacher, [train_state], chosen, ProcessGroup("cpu"))(split(2), 0)
    assert columns["loss"].item() == pytest.approx(1, rel=1e-5)


def train(teacher: Any, stage: Stage, out: Path, rank: int) -> None:
    torch.save(gradient(teacher, stage, ProcessGroup("cpu"), split(2, rank, 2)), out / f"{rank}.pt")


@needs_loopback
@pytest.mark.parametrize("objective", LAYERWISE)
def test_processes_do_not_change_the_gradient(teacher, stage, objective, tmp_path):
    chosen = layerwise_stage(stage, objective)
    assert run_both(partial(train, teacher, chosen, tmp_path)) == [0, 0]
    expected = gradient(teacher, chosen, ProcessGroup("cpu"), split(ROWS))
    for rank in (0, 1):
        assert_equal(torch.load(tmp_path / f"{rank}.pt"), expected)


@pytest.mark.parametrize("objective", [*LAYERWISE, "kd"])
def test_a_trial_leaves_no_trace(teacher: Any, stage: Any, objective: str) -> None:
    process_group = ProcessGroup("cpu")
    settings = Stage.model_validate(stage("s", objective, max_grad_norm=None))
    expected = gradient(teacher, settings, process_group, split(2))
    found = gradient(teacher, settings, process_group, split(2), trial=True)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_recomputed_activations_do_not_change_the_gradient(
    teacher: Any, stage: Any, precision: torch.dtype
) -> None:
    """Losses and gradients are equal bit for bit, and only the inputs of blocks are stored."""
    teacher = teacher.to(precision)
    found = {}
    for kind in ("none", "block"):
        settings = Stage.model_validate(stage("s", "kd", max_grad_norm=None, activation_checkpointing=kind))
        student = build_student(teacher, ["softmax", "gated_deltanet", "gla"], seed=1).train()
        train_state = StudentTrainState("s", student, precision)
        train_state.begin_stage(settings)
        calls: list[str] = []
        student.model.layers[1].mlp.gate_proj.register_forward_pre_hook(
            lambda *_, calls=calls: calls.append("mlp")
        )
        columns = TrainStep(teacher, [train_state], settings, ProcessGroup("cpu"))(split(ROWS), 0)
        found[kind] = torch.stack([columns[name] for name in settings.columns]), train_state.flat_grads.buffer
        assert len(calls) == {"none": 1, "block": 2}[kind]
        train_state.begin_stage(Stage.model_validate(stage("s", "kd")))
        assert not student.model.layers[1].recomputes
    assert found["none"][1].abs().max() > 0
    for plain, recomputed in zip(*found.values(), strict=True):
        assert torch.equal(plain, recomputed)

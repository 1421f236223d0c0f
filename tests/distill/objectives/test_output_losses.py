"""Losses of several students of one teacher, whose logits they share where these are few."""

from typing import Any

import pytest
import torch

from evalsuite.distill.objectives import end_to_end, output_losses
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.build import build_student


def losses_and_gradients(settings: Stage, teacher: Any, students: list[Any]) -> list[torch.Tensor]:
    ids = torch.arange(8, 8 + 2 * settings.seq_len).remainder(90).view(2, settings.seq_len)
    for student in students:
        student.zero_grad()
    losses = settings.start(teacher, students, torch.device("cpu"))
    losses.backward(MicroBatch(ids, ids), ids.numel())
    found, _ = losses.reduce(lambda _: None)
    return [found, *(p.grad for student in students for p in student.parameters() if p.grad is not None)]


def test_students_share_the_logits_of_their_teacher(
    monkeypatch: pytest.MonkeyPatch, teacher: Any, stage: Any
) -> None:
    settings = Stage.model_validate(stage("kd", "kd", seq_len=16))
    students = [build_student(teacher, [mixer] * 3, seed=1) for mixer in ("gla", "retnet")]
    products: list[int] = []
    real = output_losses.head_logits
    monkeypatch.setattr(
        output_losses, "head_logits", lambda x, *rest: products.append(len(x)) or real(x, *rest)
    )
    shared = losses_and_gradients(settings, teacher, students)
    assert products == [32]
    losses_and_gradients(settings, teacher, students[:1])
    monkeypatch.setattr(end_to_end, "LOGITS_BYTES", 4 * 32 * teacher.config.vocab_size - 1)
    alone = losses_and_gradients(settings, teacher, students)
    assert products == [32]
    assert len(shared) == len(alone) > 2
    for mine, theirs in zip(shared, alone, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_bias_of_the_head_is_frozen_or_refused(teacher: Any, stage: Any) -> None:
    student = build_student(teacher, ["gla"] * 3, seed=1)
    student.lm_head.bias = torch.nn.Parameter(torch.zeros(student.config.vocab_size))
    Stage.model_validate(stage("kd", "kd", trainable="block")).check_students({"gla": student})
    with pytest.raises(ConfigError, match="the head of 'gla' has a bias"):
        Stage.model_validate(stage("kd", "kd", trainable="all")).check_students({"gla": student})

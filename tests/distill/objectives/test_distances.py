"""Distances between layers of teacher and student."""

import pytest
import torch

from evalsuite.distill.objectives.layer_losses import l2_distance, l2_norm, matrix_mixing


def test_the_squared_distance_sums_the_squared_norms_of_equation_1():
    student = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    teacher = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
    assert l2_distance(student, teacher, squared=True).item() == pytest.approx(4 + 25)


def test_the_distance_sums_the_norms_of_equation_3():
    student = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    teacher = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
    assert l2_distance(student, teacher, squared=False).item() == pytest.approx(2 + 5)


def test_the_norm_has_a_gradient_at_zero_distance():
    student = torch.ones(1, 2, 3, requires_grad=True)
    l2_distance(student, torch.ones(1, 2, 3), squared=False).backward()
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("squared", [True, False])
def test_the_norm_is_the_distance_of_a_zero_student(squared):
    teacher = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    distance = l2_distance(torch.zeros_like(teacher), teacher, squared=squared)
    assert distance.item() == pytest.approx(l2_norm(teacher, squared=squared).item(), rel=1e-5)


def test_bf16_activations_are_compared_in_fp32():
    student = torch.full((1, 1, 4096), 1.0, dtype=torch.bfloat16)
    distance = l2_distance(student, torch.zeros_like(student), squared=True)
    assert distance.dtype == torch.float32
    assert distance.item() == 4096


def test_matrix_mixing_norms():
    student = torch.zeros(1, 2, 3, 3)
    teacher = torch.zeros(1, 2, 3, 3)
    teacher[0, 0, 2, 0], teacher[0, 0, 1, 1] = 3.0, 4.0
    assert matrix_mixing(student, teacher).item() == pytest.approx((5 + 0) / 2, abs=1e-3)
    # A causal 3 × 3 matrix has six entries.
    assert matrix_mixing(student, teacher, norm="mse").item() == pytest.approx(25 / 2 / 6)

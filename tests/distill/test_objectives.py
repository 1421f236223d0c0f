import pytest
import torch

from evalsuite.distill.objectives import attention_output, hidden_state, matrix_mixing, vector_distance


def test_attention_output_is_the_mean_squared_norm_of_equation_1():
    student = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    teacher = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
    assert attention_output(student, teacher).item() == pytest.approx((4 + 25) / 2)


def test_hidden_state_is_the_mean_norm_of_equation_3_not_its_square():
    student = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    teacher = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
    assert hidden_state(student, teacher).item() == pytest.approx((2 + 5) / 2)


def test_the_norm_has_a_gradient_where_student_and_teacher_agree():
    student = torch.ones(1, 2, 3, requires_grad=True)
    hidden_state(student, torch.ones(1, 2, 3)).backward()
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("relative", [True, False])
def test_tokens_without_weight_do_not_count(squared, relative):
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    weights = torch.tensor([[1, 1, 0, 0]] * 3)
    whole = vector_distance(student[:, :2], teacher[:, :2], squared=squared, relative=relative)
    teacher = teacher.clone()
    teacher[:, 2:] = 1e6
    masked = vector_distance(student, teacher, squared=squared, weights=weights, relative=relative)
    torch.testing.assert_close(masked, whole)


@pytest.mark.parametrize("squared", [True, False])
def test_relative_distance_is_one_for_a_student_that_says_nothing(squared):
    teacher = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    distance = vector_distance(torch.zeros_like(teacher), teacher, squared=squared, relative=True)
    assert distance.item() == pytest.approx(1, rel=1e-5)


def test_bf16_activations_are_compared_in_fp32():
    student = torch.full((1, 1, 4096), 1.0, dtype=torch.bfloat16)
    distance = attention_output(student, torch.zeros_like(student))
    assert distance.dtype == torch.float32
    assert distance.item() == 4096


def test_matrix_mixing_norms():
    student = torch.zeros(1, 2, 3, 3)
    teacher = torch.zeros(1, 2, 3, 3)
    teacher[0, 0, 2, 0], teacher[0, 0, 1, 1] = 3.0, 4.0
    assert matrix_mixing(student, teacher).item() == pytest.approx((5 + 0) / 2, abs=1e-3)
    # Six entries of a causal 3 × 3 matrix can differ.
    assert matrix_mixing(student, teacher, norm="mse").item() == pytest.approx(25 / 2 / 6)

"""Distances between the layers of teacher and student, as pure functions of tensors."""

import torch
from torch import Tensor

from evalsuite.models.recurrence import use_triton


def l2_distance(
    student: Tensor,
    teacher: Tensor,
    *,
    squared: bool,
    weights: Tensor | None = None,
    normalize_by_teacher: bool = False,
) -> Tensor:
    """Mean over tokens of the L2 distance, or its square, between two sequences of vectors.

    Squared distance of mixer outputs is Eq. 1 of arXiv 2504.14366; the plain distance of block outputs is
    Eq. 3. The mean over layers (Eq. 2 and 4) is left to the caller, since layers are trained separately.

    Args:
        student, teacher: [..., D]; computed in fp32 or above.
        squared: squared L2 norm instead of the L2 norm.
        weights: weight of each token [...]; default: uniform.
        normalize_by_teacher: divide by the same mean of the teacher's own vectors, so that a student that
            outputs 0 has distance 1.

    Raises:
        ValueError: the weights leave no token.
    """
    if squared and weights is None and student.dtype == teacher.dtype and use_triton(student):
        from evalsuite.models.kernels.hidden_distance import squared_distance

        total, teacher_total = squared_distance(student, teacher.detach())
        return (
            total / teacher_total if normalize_by_teacher else total / (student.numel() // student.shape[-1])
        )
    dtype = torch.promote_types(student.dtype, torch.float32)
    target = teacher.detach().to(dtype)
    distance = (student.to(dtype) - target).square().sum(-1)
    scale = target.square().sum(-1) if normalize_by_teacher else None
    if not squared:
        # The norm has no gradient at 0, which copied weights can reach.
        distance = (distance + torch.finfo(dtype).eps).sqrt()
        scale = None if scale is None else scale.sqrt()
    if weights is None:
        return distance.mean() if scale is None else distance.sum() / scale.sum()
    weights = weights.to(dtype)
    return (distance * weights).sum() / (weights if scale is None else scale * weights).sum()


def matrix_mixing(student: Tensor, teacher: Tensor, *, norm: str = "frobenius") -> Tensor:
    """Distance of token-mixing matrices [B, H, T, T] ("Empirical Evaluation of Knowledge Distillation from
    Transformers to Subquadratic Language Models", Eq. 7 and Appendix B).

    frobenius: ‖M_S − M_T‖_F, mean over batch and heads. mse: mean square over the causal half, so that the
    zeros above the diagonal do not count.
    """
    dtype = torch.promote_types(student.dtype, torch.float32)
    difference = student.to(dtype) - teacher.detach().to(dtype)
    if norm == "frobenius":
        return (difference.square().sum((-1, -2)) + torch.finfo(dtype).eps).sqrt().mean()
    length = difference.shape[-1]
    return difference.square().sum((-1, -2)).mean() / (length * (length + 1) / 2)

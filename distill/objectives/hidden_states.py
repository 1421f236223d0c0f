"""Distances between the layers of teacher and student, as pure functions of tensors."""

import torch
from torch import Tensor

from evalsuite.models.ops.hidden_distance import squared_distance


def l2_distance(student: Tensor, teacher: Tensor, *, squared: bool) -> Tensor:
    """Sum over tokens of the L2 distance, or its square, between two sequences of vectors.

    The squared distance of mixer outputs is that of Eq. 1 of arXiv 2504.14366; the plain distance of block
    outputs is that of Eq. 3. Means over tokens and layers are left to the caller.

    Args:
        student, teacher: [..., D]; computed in fp32 or above.
        squared: squared L2 norm instead of the L2 norm.
    """
    if squared:
        return squared_distance(student, teacher.detach())
    dtype = torch.promote_types(student.dtype, torch.float32)
    distance = (student.to(dtype) - teacher.detach().to(dtype)).square().sum(-1)
    # The norm has no gradient at 0, which copied weights can reach.
    return (distance + torch.finfo(dtype).eps).sqrt().sum()


def l2_norm(teacher: Tensor, *, squared: bool) -> Tensor:
    """Sum over tokens of the L2 norm, or its square: the distance of a student that outputs 0."""
    norm = teacher.detach().to(torch.promote_types(teacher.dtype, torch.float32)).square().sum(-1)
    return norm.sum() if squared else norm.sqrt().sum()


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

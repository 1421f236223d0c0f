"""What a student is trained on, as pure functions of tensors.

Alignment objectives compare one layer of teacher and student; the mean over layers (Eq. 2 and 4 of
arXiv 2504.14366) is the caller's, since layers are trained one by one. `kd` and `sft` compare
next-token distributions and live in `chunked_loss`.
"""

import torch
from torch import Tensor

from evalsuite.distill.chunked_loss import KdForm, chunked_loss, kd_per_token
from evalsuite.models.recurrence import using_fla

__all__ = [
    "KdForm",
    "attention_output",
    "chunked_loss",
    "hidden_state",
    "kd_per_token",
    "matrix_mixing",
    "vector_distance",
]


def vector_distance(
    student: Tensor, teacher: Tensor, *, squared: bool, weights: Tensor | None = None, relative: bool = False
) -> Tensor:
    """Mean over tokens of the L2 distance (or its square) between two sequences of vectors.

    Args:
        student, teacher: [..., D], computed in fp32 at least.
        squared: the squared norm or the norm.
        weights: [...], which tokens count and how much; default: all alike.
        relative: divide by the same mean of the teacher's own vectors, so that 1 means "no better than 0".

    Raises:
        ValueError: the weights leave no token.
    """
    if squared and weights is None and student.dtype == teacher.dtype and using_fla(student):
        from evalsuite.distill.kernels import squared_distance

        apart, size = squared_distance(student, teacher.detach())
        return apart / size if relative else apart / (student.numel() // student.shape[-1])
    dtype = torch.promote_types(student.dtype, torch.float32)
    target = teacher.detach().to(dtype)
    distance = (student.to(dtype) - target).square().sum(-1)
    scale = target.square().sum(-1) if relative else None
    if not squared:
        # The norm has no gradient at 0, where copied weights may well put it.
        distance = (distance + torch.finfo(dtype).eps).sqrt()
        scale = None if scale is None else scale.sqrt()
    if weights is None:
        return distance.mean() if scale is None else distance.sum() / scale.sum()
    weights = weights.to(dtype)
    return (distance * weights).sum() / (weights if scale is None else scale * weights).sum()


def attention_output(
    student: Tensor, teacher: Tensor, *, weights: Tensor | None = None, relative: bool = False
) -> Tensor:
    """‖a_S − a_T‖² of a layer's mixer output [B, T, D], mean over tokens (arXiv 2504.14366 Eq. 1)."""
    return vector_distance(student, teacher, squared=True, weights=weights, relative=relative)


def hidden_state(
    student: Tensor, teacher: Tensor, *, weights: Tensor | None = None, relative: bool = False
) -> Tensor:
    """‖h_S − h_T‖, not squared, mean over tokens (arXiv 2504.14366 Eq. 3)."""
    return vector_distance(student, teacher, squared=False, weights=weights, relative=relative)


def matrix_mixing(student: Tensor, teacher: Tensor, *, norm: str = "frobenius") -> Tensor:
    """Distance of token-mixing matrices [B, H, T, T] (seed 002 Eq. 7, Appendix B).

    frobenius: ‖M_S − M_T‖_F, mean over batch and heads; mse: mean of the squared entries of the causal
    half, so that the zeros above the diagonal do not dilute it.
    """
    dtype = torch.promote_types(student.dtype, torch.float32)
    difference = student.to(dtype) - teacher.detach().to(dtype)
    if norm == "frobenius":
        return (difference.square().sum((-1, -2)) + torch.finfo(dtype).eps).sqrt().mean()
    length = difference.shape[-1]
    return difference.square().sum((-1, -2)).mean() / (length * (length + 1) / 2)

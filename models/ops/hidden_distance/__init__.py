"""Squared distance between hidden states of student and teacher."""

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import Kernel, op


@op(training=Kernel(module="training", where=lambda s, t: s.dtype == t.dtype and s.numel() > 0))
def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Σ ‖s − t‖² over all vectors [..., D], in float32 or above; differentiable in the student."""
    dtype = torch.promote_types(student.dtype, torch.float32)
    return (student.to(dtype) - teacher.to(dtype)).square().sum(-1).sum()

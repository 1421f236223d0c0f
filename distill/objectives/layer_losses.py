"""Losses of single layers over one optimizer step, independent of its division into micro-batches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from evalsuite.distill.recipe import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.parameter_groups import softmax_layer_indices
from evalsuite.distill.types import CausalLM


class LayerLosses:
    """Losses of every student and layer of one optimizer step.

    A loss is a sum of distances over a divisor: the number of loss tokens of the global batch or, with
    `normalize_by_teacher`, the sum of the teacher's norms over the global batch. That sum is known only after
    the last micro-batch of the last process. Until then, this process divides by the norms of its first
    micro-batch, which keeps gradients in range; `reduce` returns the factors that correct them.

    All tensors keep their memory over steps, as CUDA graphs need.
    """

    def __init__(self, students: Sequence[CausalLM], stage: Stage, device: torch.device) -> None:
        num_layers = len(students[0].model.layers)
        self._normalize = stage.alignment_loss.normalize_by_teacher and stage.objective != "matrix_mixing"
        self._losses = torch.zeros(len(students), num_layers, device=device)
        self._first_norms = torch.zeros(num_layers, device=device)
        self._norms = torch.zeros(num_layers, device=device)
        replaced = [num_layers - len(softmax_layer_indices(student)) for student in students]
        self._num_replaced = torch.tensor(replaced, device=device)

    @property
    def normalize(self) -> bool:
        """Whether losses are divided by the teacher's norms."""
        return self._normalize

    def zero(self) -> None:
        """Begin a step."""
        for tensor in (self._losses, self._first_norms, self._norms):
            tensor.zero_()

    def add_norm(self, layer: int, norm: Tensor) -> Tensor:
        """Add the teacher's norm over a micro-batch; return the preliminary divisor of its distances."""
        self._norms[layer] += norm
        divisor = torch.where(self._first_norms[layer] == 0, norm, self._first_norms[layer])
        self._first_norms[layer] = divisor
        return divisor

    def add_loss(self, student: int, layer: int, loss: Tensor) -> None:
        """Add the loss of a micro-batch."""
        self._losses[student, layer] += loss.detach()

    def reduce(self, process_group: ProcessGroup) -> tuple[Tensor, Tensor | None]:
        """End a step.

        Returns:
            Losses of this process' share of the batch [students], means over the replaced layers; their sum
            over processes is the loss. And factors on this process' gradients [layers]; None if they are 1.
        """
        if not self._normalize:
            return self._losses.sum(1) / self._num_replaced, None
        norms = self._norms.clone()
        process_group.all_reduce(norms)
        # A layer without loss tokens, or without a replaced mixer, has no norm.
        factors = torch.where(norms == 0, 0.0, self._first_norms / norms)
        return (self._losses * factors).sum(1) / self._num_replaced, factors

"""Losses of single layers: distances, and teacher and students that run together, layer by layer.

The teacher runs once, without gradients. As each of its layers finishes, that layer of every student is run
on the same input, compared and differentiated. Memory is that of one layer, there is no full student forward,
and several students share one teacher forward. During CUDA graph capture, the students' layers and the
teacher's next layer run on parallel streams.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.objectives.cuda_streams import SideStreams
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.types import CausalLM, MicroBatch, softmax_layer_indices
from evalsuite.models.decoder.block import Block, LayerActivations
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


class LayerLosses:
    """`StepLosses` of a layerwise stage.

    A loss is a sum of distances over a divisor: the number of loss tokens of the global batch or, with
    a `target_norm`, the sum of the teacher's norms over the global batch. That sum is known only
    after the last micro-batch of the last process. Until then, this process divides by the norms of its first
    micro-batch, which keeps gradients in range; `reduce` returns the factors that correct them.

    Gradients are those of the sum over layers, since every layer is optimized and clipped separately.

    Args:
        target, distance, target_norm: see `LayerwiseStage`.
    """

    def __init__(
        self,
        target: Callable[[LayerActivations, MicroBatch], Tensor],
        distance: Callable[[Block, LayerActivations, Tensor, MicroBatch], Tensor],
        target_norm: Callable[[Tensor], Tensor] | None,
        teacher: CausalLM,
        students: Sequence[CausalLM],
        device: torch.device,
    ) -> None:
        self._target, self._distance, self._target_norm = target, distance, target_norm
        self._teacher, self._students = teacher, students
        num_layers = len(students[0].model.layers)
        self._losses = torch.zeros(len(students), num_layers, device=device)
        self._first_norms = torch.zeros(num_layers, device=device)
        self._norms = torch.zeros(num_layers, device=device)
        self._replaced = [set(range(num_layers)) - softmax_layer_indices(student) for student in students]
        self._num_replaced = torch.tensor([len(layers) for layers in self._replaced], device=device)

    def zero(self) -> None:
        """Begin a step."""
        for tensor in (self._losses, self._first_norms, self._norms):
            tensor.zero_()

    def backward(self, batch: MicroBatch, num_loss_tokens: int) -> None:
        whole = batch.sequence_parallel is None
        if whole and batch.loss_indices is not None and batch.loss_indices.numel() == 0:
            return
        streams = SideStreams(len(self._students), batch.input_ids.device)

        def compare(layer: int, activations: LayerActivations) -> None:
            if not any(layer in replaced for replaced in self._replaced):
                return
            target = self._target(activations, batch)
            divisor: Any = num_loss_tokens
            if self._target_norm is not None:
                divisor = self._add_norm(layer, self._target_norm(target), batch)
            streams.join(activations, target, divisor)
            for number, student in enumerate(self._students):
                if layer not in self._replaced[number]:
                    continue
                with streams.fork(number), torch.enable_grad():
                    block = student.model.layers[layer]
                    loss = self._distance(block, activations, target, batch) / divisor
                    loss.backward()
                    self._losses[number, layer] += loss.detach()

        with torch.no_grad():
            hidden_states(self._teacher, batch, observe=compare)
        streams.join()

    def _add_norm(self, layer: int, norm: Tensor, batch: MicroBatch) -> Tensor:
        """Add the teacher's norm over a micro-batch; return the preliminary divisor of its distances."""
        self._norms[layer] += norm
        if batch.sequence_parallel is not None:
            # Gradients of one process' distances are added to those of others: all have the same divisor.
            norm = batch.sequence_parallel.sum(norm)
        divisor = torch.where(self._first_norms[layer] == 0, norm, self._first_norms[layer])
        self._first_norms[layer] = divisor
        # Without a loss token in any part, the distance is 0, too.
        return divisor.where(divisor != 0, 1)

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> tuple[Tensor, Tensor | None]:
        """Losses [students, 1] are means over the replaced layers."""
        if self._target_norm is None:
            return self._mean(self._losses), None
        norms = self._norms.clone()
        all_reduce(norms)
        # A layer without loss tokens, or without a replaced mixer, has no norm.
        factors = torch.where(norms == 0, 0.0, self._first_norms / norms)
        return self._mean(self._losses * factors), factors

    def _mean(self, losses: Tensor) -> Tensor:
        return (losses.sum(1) / self._num_replaced)[:, None]

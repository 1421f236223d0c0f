"""The interface between the training step and the losses of a stage."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from evalsuite.distill.objectives.forward import call_within
from evalsuite.distill.types import CausalLM, MicroBatch

Result = TypeVar("Result")


class StepLosses(Protocol):
    """Losses of all students over one optimizer step, independent of its division into micro-batches.

    Tensors keep their memory over steps, as CUDA graphs need.
    """

    def zero(self) -> None:
        """Begin a step."""

    def backward(self, batch: MicroBatch, num_loss_tokens: int) -> None:
        """Add losses of one micro-batch, and its gradients to those of every student.

        Args:
            num_loss_tokens: loss tokens of the whole step, over all processes.
        """

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> tuple[Tensor, Tensor | None]:
        """End a step.

        Args:
            all_reduce: sums a tensor over all processes, in place.

        Returns:
            This process' share of the losses [students, columns]; their sum over processes is the loss. And
            factors on this process' gradients [layers]; None if they are 1.
        """


class StudentWithLoss(nn.Module):
    """A student together with its loss: one forward pass, for which a sharded student is gathered."""

    def __init__(self, student: CausalLM) -> None:
        super().__init__()
        self.student: Any = student

    def forward(self, function: Callable[[CausalLM], Result]) -> Result:
        """Apply a function to the student, such as a loss that returns its columns (see `Stage.columns`)."""
        result: Result = call_within(self.student, function, self.student)
        return result

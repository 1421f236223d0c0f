"""An optimizer: gradient descent with momentum."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Literal

from evalsuite.distill.optim.optimizers import Fraction, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn

EVALSUITE_API = 1


class Momentum(Optimizer):
    """Gradient descent with momentum."""

    kind: Literal["example_momentum"]
    momentum: Fraction = 0.9
    """Momentum of the gradient."""

    @property
    def state_bytes(self) -> int:
        return 4

    def build(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr_of: Callable[[str], float],
        undecayed: Collection[str],
    ) -> "list[torch.optim.Optimizer]":
        import torch

        return [torch.optim.SGD(self.groups(parameters, lr_of, undecayed), momentum=self.momentum)]

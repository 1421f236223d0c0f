"""Muon with all matrices of one shape orthogonalized together.

torch.optim.Muon takes one matrix after the other: for SmolLM2-135M some six thousand short kernels a step,
which Python launches more slowly than a GPU trains on a batch. The mathematics is the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration (Jordan et al., 2024), which torch uses as well."""
ITERATIONS = 5
UPDATE_SIZE = 0.2
"""Root mean square of an update's entries over the learning rate, as of AdamW's (arXiv 2502.16982)."""


class Muon(torch.optim.Optimizer):
    """Momentum (Nesterov), orthogonalized, with decoupled weight decay; every parameter is a matrix.

    Args:
        parameters: matrices, or groups of them with `lr` and `weight_decay`.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(tuple(parameter.shape), []).append(parameter)
            for shape, members in alike.items():
                self._update(members, max(shape), group)

    def _update(self, members: list[Tensor], longest: int, group: dict[str, Any]) -> None:
        momentum = group["momentum"]
        for parameter in members:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in members]
        gradients: list[Tensor] = [parameter.grad for parameter in members]  # type: ignore[misc]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum)
        update = orthogonalized(torch.stack(ahead)).to(members[0].dtype)
        torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(members, list(update.unbind()), alpha=-group["lr"] * UPDATE_SIZE * longest**0.5)


def orthogonalized(matrices: Tensor) -> Tensor:
    """About U Vᵀ of every matrix U Σ Vᵀ in [N, rows, columns], in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x

"""RMS norms of models that are no decoder of ours in one kernel, for inference on a GPU.

A small model on a large GPU is bound by the number of kernels, and norms account for a third of them.
"""

import torch
from torch import Tensor, nn

from evalsuite.models.mixers.layers import norm_eps
from evalsuite.models.ops.rms_norm import rms_norm

_ULP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


class OneKernelNorm(nn.Module):
    """Takes the place of an RMS norm in passes without gradients."""

    def __init__(self, norm: nn.Module, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, eps
        # In a tuple, so that its parameters have no second name.
        self._replaced = (norm,)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            found: Tensor = self._replaced[0](x)
            return found
        assert isinstance(self.weight, Tensor)
        return rms_norm(x, self.weight, self.eps)[0]


def replace_norms(model: nn.Module, devices: tuple[str, ...] = ("cuda",)) -> int:
    """Replace the norms of a model, in place, for which the op's kernel gives the same result.

    A norm qualifies if it has nothing but a weight and an epsilon and, on a random input, agrees to the last
    place of its dtype. All others are left alone.

    Returns:
        Number of norms that were replaced.
    """
    found = [
        (owner, name, module, eps)
        for owner in model.modules()
        for name, module in owner.named_children()
        if (eps := epsilon(module)) is not None and _agrees(module, eps, devices)
    ]
    for owner, name, module, eps in found:
        setattr(owner, name, OneKernelNorm(module, eps))
    return len(found)


def epsilon(module: nn.Module) -> float | None:
    """Epsilon of a module that has one, a weight [D], and nothing else; None for others."""
    eps = norm_eps(module)
    parameters = dict(module.named_parameters())
    one_weight = list(parameters) == ["weight"] and parameters["weight"].dim() == 1
    return eps if one_weight and isinstance(eps, float) else None


@torch.inference_mode()
def _agrees(module: nn.Module, eps: float, devices: tuple[str, ...]) -> bool:
    weight = module.weight
    assert isinstance(weight, Tensor)
    if weight.device.type not in devices:
        return False
    sample = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(0)).to(weight) * 3
    try:
        theirs = module(sample).float()
    except Exception:  # It reads another shape; what it raises can be anything.
        return False
    mine = rms_norm(sample, weight, eps)[0].float()
    return torch.allclose(mine, theirs, rtol=_ULP.get(weight.dtype, 1e-5), atol=1e-6)

"""Fused RMS norms and MLPs for inference on a GPU, without the many small kernels of the modules' own code.

A small model on a large GPU is bound by the number of kernels, and norms account for a third of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.mistral.modeling_mistral import MistralMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from evalsuite.models.ops import rms_norm as ops
from evalsuite.models.ops.dispatch import use_triton, warn_once

NARROW = 256
"""Width up to which a norm is one of heads."""
_ULP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


class FusedNorms:
    """The RMS norms and gated MLPs of a model for which a fused kernel gives the same result; none on a CPU.

    A norm qualifies if it has nothing but a weight and an epsilon and, on a random input, agrees to the
    last place of its dtype; an MLP if its class is one whose code is known. All others are left alone.
    """

    def __init__(self, model: nn.Module) -> None:
        found = ((module, fused_forward(module) or fused_mlp(module)) for module in model.modules())
        self._fused = [(module, forward) for module, forward in found if forward is not None]

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Use the fused kernel within this context; the model is restored afterwards."""
        for module, forward in self._fused:
            module.__dict__["forward"] = forward
        try:
            yield
        finally:
            for module, _ in self._fused:
                del module.__dict__["forward"]


def fused_forward(
    module: nn.Module, devices: tuple[str, ...] = ("cuda",)
) -> Callable[[Tensor], Tensor] | None:
    """Torch's RMS norm with the module's weight, or None if the module is not an equivalent norm."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight_only = [name for name, _ in module.named_parameters()] == ["weight"]
    if not (weight_only and isinstance(weight, Tensor) and weight.dim() == 1 and isinstance(eps, float)):
        return None
    if weight.device.type not in devices or "forward" in module.__dict__:
        return None
    forward = partial(_rms_norm, weight=weight, eps=eps)
    sample = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(0)).to(weight) * 3
    with torch.inference_mode():
        try:
            theirs = module(sample).float()
        except Exception:  # It reads another shape; what it raises can be anything.
            return None
        mine = forward(sample).float()
    close = torch.allclose(mine, theirs, rtol=_ULP.get(weight.dtype, 1e-5), atol=1e-6)
    return forward if close else None


def _rms_norm(hidden_states: Tensor, *, weight: Tensor, eps: float) -> Tensor:
    # Torch's kernel takes one block of threads per row, which heads are too narrow for.
    if len(weight) <= NARROW:
        return ops.rms_norm(hidden_states, weight, eps)[0]
    return rms_norm(hidden_states, weight.shape, weight, eps)


def fused_mlp(module: Any) -> Callable[[Tensor], Tensor] | None:
    """The forward pass of a gated MLP whose activation and product are one kernel; None where none is right.

    The kernel rounds once, the module's own code twice, so that they agree to two places.
    """
    if type(module) not in (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP) or "forward" in module.__dict__:
        return None
    weight = module.down_proj.weight
    if module.config.hidden_act != "silu" or weight.dtype not in _ULP or not use_triton(weight):
        return None
    gate, up = (torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(0)) * 3).to(weight)
    try:
        from evalsuite.models.ops.swiglu import swiglu

        with torch.inference_mode():
            mine, theirs = swiglu(gate, up).float(), (module.act_fn(gate) * up).float()
    except Exception as error:  # What a compiler raises can be anything.
        warn_once(f"MLPs in separate operations: {str(error).splitlines()[0]}")
        return None
    close = torch.allclose(mine, theirs, rtol=2 * _ULP[weight.dtype], atol=1e-6)
    return partial(_gated_mlp, module) if close else None


def _gated_mlp(module: Any, x: Tensor) -> Tensor:
    from evalsuite.models.ops.swiglu import swiglu

    out: Tensor = module.down_proj(swiglu(module.gate_proj(x), module.up_proj(x)))
    return out

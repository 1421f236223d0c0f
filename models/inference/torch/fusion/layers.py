"""Decoder layers in about half as many kernels, for inference on a GPU.

Projections of one input are one product, the first residual addition is part of the norm that follows, and
the second one of the MLP's last product.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.models.decoder.block import Block, Context
from evalsuite.models.decoder.families import PRE
from evalsuite.models.inference.torch.fusion.projections import JoinedProjections
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.rms_norm import rms_norm
from evalsuite.models.ops.swiglu import swiglu


class FusedLayers:
    """The decoder layers of a model that can be computed in fewer kernels; none on a CPU.

    Layers qualify if their class and those of their MLP and norm are known, in half precision, and if the
    kernels prove right. All others are left alone. Their token mixer may be any.
    """

    def __init__(self, model: nn.Module) -> None:
        found: list[Any] = [module for module in model.modules() if _is_fusible(module)]
        with torch.no_grad():
            applies = found and rms_norm.has_kernel(found[0].mlp.gate_proj.weight)
        self._layers = found if applies else []
        groups = [group for layer in self._layers for group in _joint_projections(layer)]
        self._projections = JoinedProjections(groups)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Compute the layers so within this context; the model is restored afterwards."""
        with ExitStack() as stack:
            stack.enter_context(self._projections.enabled())
            for layer in self._layers:
                layer.__dict__["forward"] = partial(_forward, layer)
                stack.callback(layer.__dict__.pop, "forward")
            yield


def _is_fusible(layer: Any) -> bool:
    if not isinstance(layer, Block) or layer.family.norms != PRE or layer.family.gain != "rounded_first":
        return False
    mlp = layer.mlp
    half = mlp.down_proj.weight.dtype in (torch.bfloat16, torch.float16)
    return layer.is_swiglu and half and all(map(_is_plain, (mlp.gate_proj, mlp.up_proj, mlp.down_proj)))


def _is_plain(layer: nn.Module) -> bool:
    """Whether a module is a product with its weight, and nothing else."""
    return type(layer) is nn.Linear and layer.bias is None and "forward" not in layer.__dict__


def _joint_projections(layer: Any) -> list[list[nn.Linear]]:
    """Groups of the layer's projections that read the same input."""
    attention, mlp = layer.self_attn, layer.mlp
    if isinstance(attention, RecurrentMixer):
        mixing: Sequence[nn.Module] = attention.joint_projections()
    else:
        mixing = [getattr(attention, name, attention) for name in ("q_proj", "k_proj", "v_proj")]
    plain = [each for each in mixing if isinstance(each, PerHeadLinear) or _is_plain(each)]
    return [[each for each in plain if isinstance(each, nn.Linear)], [mlp.gate_proj, mlp.up_proj]]


def _forward(layer: Block, hidden_states: Tensor, context: Context, **_: Any) -> Tensor:
    """Forward pass of a fusible layer, hidden states [B, T, width]."""
    mixed, _attention = layer.mix(layer.input_layernorm(hidden_states), context)
    norm, mlp = layer.post_attention_layernorm, layer.mlp
    normed, hidden = rms_norm(mixed, norm.weight, norm.variance_epsilon, hidden_states)
    values = swiglu(mlp.gate_proj(normed), mlp.up_proj(normed))
    # Added by the product itself, into a tensor that nobody else has.
    hidden.flatten(0, 1).addmm_(values.flatten(0, 1), mlp.down_proj.weight.T)
    return hidden

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
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralMLP, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3MLP, Qwen3RMSNorm

from evalsuite.models.inference.torch.fusion.projections import JoinedProjections
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.layers import PerHeadLinear
from evalsuite.models.ops.rms_norm import rms_norm
from evalsuite.models.ops.swiglu import swiglu

KNOWN: dict[type[nn.Module], tuple[type[nn.Module], type[nn.Module]]] = {
    LlamaDecoderLayer: (LlamaMLP, LlamaRMSNorm),
    MistralDecoderLayer: (MistralMLP, MistralRMSNorm),
    Qwen2DecoderLayer: (Qwen2MLP, Qwen2RMSNorm),
    Qwen3DecoderLayer: (Qwen3MLP, Qwen3RMSNorm),
}
"""Layers whose code is known, with the classes of their MLPs and norms."""


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
    if type(layer) not in KNOWN or "forward" in layer.__dict__:
        return False
    mlp, norm = layer.mlp, layer.post_attention_layernorm
    if (type(mlp), type(norm)) != KNOWN[type(layer)] or "forward" in mlp.__dict__:
        return False
    half = mlp.down_proj.weight.dtype in (torch.bfloat16, torch.float16)
    projections = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return mlp.config.hidden_act == "silu" and half and all(map(_is_plain, projections))


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


def _forward(layer: Any, hidden_states: Tensor, **arguments: Any) -> Tensor:
    """Forward pass of a fusible layer, hidden states [B, T, width]."""
    normed = layer.input_layernorm(hidden_states)
    mixed = layer.self_attn(hidden_states=normed, **arguments)[0]
    norm, mlp = layer.post_attention_layernorm, layer.mlp
    normed, hidden = rms_norm(mixed, norm.weight, norm.variance_epsilon, hidden_states)
    values = swiglu(mlp.gate_proj(normed), mlp.up_proj(normed))
    # Added by the product itself, into a tensor that nobody else has.
    hidden.flatten(0, 1).addmm_(values.flatten(0, 1), mlp.down_proj.weight.T)
    return hidden

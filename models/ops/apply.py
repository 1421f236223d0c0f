"""Patch a decoder to use fused kernels between its matrix products, on CUDA.

transformers implements RMSNorm, rotary embedding, the MLP's gate and residual additions as chains of
elementwise operations, each of which reads and writes all activations and stores them for the backward pass.
The fused kernels do the same arithmetic in one pass. Modules, parameters and their names do not change; off
CUDA the original forward methods run.
"""

from types import MethodType
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional

from evalsuite.models.decoder.cache import CACHE
from evalsuite.models.decoder.config import LLAMA_STYLE
from evalsuite.models.ops.dispatch import use_triton


class _HasDecoder(Protocol):
    config: Any
    model: Any


def apply_fused_kernels(model: _HasDecoder) -> None:
    """Patch layers, norms, MLPs and softmax attention of a causal LM in place, if its blocks are Llama's."""
    base = getattr(model.config, "base", model.config)
    if base.model_type not in LLAMA_STYLE:
        return
    for layer in model.model.layers:
        layer.forward = MethodType(_layer_forward, layer)
        if layer.mlp.config.hidden_act == "silu":
            layer.mlp.forward = MethodType(_mlp_forward, layer.mlp)
        if hasattr(layer.self_attn, "scaling") and getattr(layer.self_attn, "masked_by_decoder", True):
            layer.self_attn.forward = MethodType(_attention_forward, layer.self_attn)
    model.model.norm.forward = MethodType(_norm_forward, model.model.norm)


def _layer_forward(self: Any, hidden_states: Tensor, **arguments: Any) -> Tensor:
    if not use_triton(hidden_states):
        plain: Tensor = type(self).forward(self, hidden_states, **arguments)
        return plain
    from evalsuite.models.ops.rms_norm.training import rms_norm

    before, after = self.input_layernorm, self.post_attention_layernorm
    normed, hidden = rms_norm(hidden_states, before.weight, before.variance_epsilon)
    mixed = self.self_attn(hidden_states=normed, **arguments)[0]
    normed, hidden = rms_norm(mixed, after.weight, after.variance_epsilon, residual=hidden)
    out: Tensor = hidden + self.mlp(normed)
    return out


def _norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    if not use_triton(hidden_states):
        plain: Tensor = type(self).forward(self, hidden_states)
        return plain
    from evalsuite.models.ops.rms_norm.training import rms_norm

    return rms_norm(hidden_states, self.weight, self.variance_epsilon)[0]


def _mlp_forward(self: Any, x: Tensor) -> Tensor:
    if not use_triton(x):
        plain: Tensor = type(self).forward(self, x)
        return plain
    from evalsuite.models.ops.swiglu.training import swiglu_linear

    down = self.down_proj
    return swiglu_linear(self.gate_proj(x), self.up_proj(x), down.weight, down.bias)


def _attention_forward(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    cache: Any = None,
    **arguments: Any,
) -> tuple[Tensor, Any]:
    """Causal attention over unmasked rows; anything with a mask, a cache or another implementation falls back
    to transformers."""
    caches = past_key_values if cache is None else cache
    special = attention_mask is not None or caches is not None or self.attention_dropout
    if special or self.config._attn_implementation != "sdpa" or not use_triton(hidden_states):
        plain: tuple[Tensor, Any] = type(self).forward(
            self,
            hidden_states=hidden_states,
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            **{CACHE: caches},
            **arguments,
        )
        return plain
    from evalsuite.models.ops.rotary.training import rotary

    projected = (self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states))
    q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in projected)
    if hasattr(self, "q_norm"):
        q, k = self.q_norm(q), self.k_norm(k)
    q, k = rotary(q, *position_embeddings), rotary(k, *position_embeddings)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=True,
        scale=self.scaling,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return self.o_proj(out.transpose(1, 2).flatten(2)), None

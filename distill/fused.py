"""One pass instead of several for what lies between a model's matrix products, on CUDA.

transformers writes RMSNorm, the rotary embedding, the MLP's gate and the residual sums as chains of small
operations, each of which reads and writes all activations and keeps them for the backward pass. Here the
same arithmetic is done at once; the modules, their parameters and their names stay as they are, and off
CUDA so does what they run.
"""

from types import MethodType
from typing import Any

from torch import Tensor
from torch.nn import functional

from evalsuite.distill.language_model import LanguageModel
from evalsuite.models.recurrence import using_fla


def fuse(model: LanguageModel) -> None:
    """Give a Llama-style decoder's layers, norms, MLPs and softmax attention their fused form."""
    for layer in model.model.layers:
        layer.forward = MethodType(_layer, layer)
        if layer.mlp.config.hidden_act == "silu":
            layer.mlp.forward = MethodType(_mlp, layer.mlp)
        if hasattr(layer.self_attn, "scaling"):
            layer.self_attn.forward = MethodType(_attention, layer.self_attn)
    model.model.norm.forward = MethodType(_rms_norm, model.model.norm)


def _layer(self: Any, hidden_states: Tensor, **arguments: Any) -> Tensor:
    if not using_fla(hidden_states):
        plain: Tensor = type(self).forward(self, hidden_states, **arguments)
        return plain
    from evalsuite.distill.fused_kernels import norm

    before, after = self.input_layernorm, self.post_attention_layernorm
    normed, hidden = norm(hidden_states, before.weight, before.variance_epsilon)
    mixed = self.self_attn(hidden_states=normed, **arguments)[0]
    normed, hidden = norm(mixed, after.weight, after.variance_epsilon, residual=hidden)
    out: Tensor = hidden + self.mlp(normed)
    return out


def _rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    if not using_fla(hidden_states):
        plain: Tensor = type(self).forward(self, hidden_states)
        return plain
    from evalsuite.distill.fused_kernels import norm

    return norm(hidden_states, self.weight, self.variance_epsilon)[0]


def _mlp(self: Any, x: Tensor) -> Tensor:
    if not using_fla(x):
        plain: Tensor = type(self).forward(self, x)
        return plain
    from fla.modules.activations import swiglu_linear

    # The product of gate and up is made again in the backward pass instead of being kept.
    down = self.down_proj
    out: Tensor = swiglu_linear(self.gate_proj(x), self.up_proj(x), down.weight, down.bias)
    return out


def _attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **arguments: Any,
) -> tuple[Tensor, Any]:
    """Causal attention over whole rows; masks, caches and other implementations stay transformers' own."""
    special = attention_mask is not None or past_key_values is not None or self.attention_dropout
    if special or self.config._attn_implementation != "sdpa" or not using_fla(hidden_states):
        plain: tuple[Tensor, Any] = type(self).forward(
            self,
            hidden_states=hidden_states,
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **arguments,
        )
        return plain
    from evalsuite.models.mixers.kernels import rotary

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

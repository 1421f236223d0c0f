"""Softmax attention for inference: transformers' attention modules call it, no KV head is ever copied.

transformers expands keys and values to all query heads whenever a mask is given. With grouped queries
that multiplies the traffic of a decode step, which is nothing but KV traffic. Here the query heads of a
group are laid along the query axis instead, which is the same sum.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

NAME = "evalsuite"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' `AttentionInterface`.

    Args:
        module: the attention module (unused).
        query: [B, H, T, D]; key, value: [B, H / groups, L, D].
        attention_mask: additive [B or 1, 1, T, L]; None is causal attention with L = T.
        scaling: factor on the products; None is D ** -0.5.

    Returns:
        [B, T, H, D] and None, as transformers expects.
    """
    batch, heads, length, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    groups = heads // kv_heads
    if attention_mask is None:
        # The fused kernels take grouped heads except in fp32 on CUDA, where torch would fall back to a
        # kernel that stores all scores.
        if groups > 1 and query.is_cuda and query.dtype == torch.float32:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            groups = 1
        out = scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scaling, enable_gqa=groups > 1
        )
        return out.transpose(1, 2), None
    if groups > 1:
        query = query.reshape(batch, kv_heads, groups * length, width)
        if length > 1:
            mask = attention_mask[:, :, None].expand(-1, -1, groups, -1, -1)
            attention_mask = mask.reshape(-1, 1, groups * length, keys)
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return out.view(batch, heads, length, -1).transpose(1, 2), None


AttentionInterface.register(NAME, attend)


class Attention:
    """Context in which every softmax layer of `model` uses `attend`; outside it uses what it used before."""

    def __init__(self, model: PreTrainedModel) -> None:
        configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        self._configs = list({id(c): c for c in configs if hasattr(c, "_attn_implementation")}.values())
        self._before: list[str | None] = []

    def __enter__(self) -> None:
        self._before = [config._attn_implementation for config in self._configs]
        for config in self._configs:
            config._attn_implementation = NAME

    def __exit__(self, *_: object) -> None:
        for config, before in zip(self._configs, self._before, strict=True):
            config._attn_implementation = before

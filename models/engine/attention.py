"""Softmax attention for inference: transformers' attention modules call it, no KV head is ever copied.

transformers expands keys and values to all query heads whenever a mask is given. With grouped queries
that multiplies the traffic of a decode step, which is nothing but KV traffic. Here the query heads of a
group are laid along the query axis instead, which is the same sum.

Masks do not travel through the model: transformers returns a mask of its own for layers with a sliding
window, which knows nothing of ragged rows. `attend` asks the masks of the running call for its window.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from evalsuite.models.engine.packing import Packing

NAME = "evalsuite"


class Masks:
    """What each new token may look at; an additive mask per sliding window, made when first asked for.

    Args:
        queries: positions [R, T] of the new tokens.
        keys: positions [R or 1, L] of all keys, the new tokens' included.
        real: bool [R, L], which keys exist; None if keys are the new tokens themselves, in order, so that
            plain causal attention is meant and pads on the right need no mask.
        dtype: dtype of the attention scores.
    """

    def __init__(self, queries: Tensor, keys: Tensor, real: Tensor | None, dtype: torch.dtype) -> None:
        self._queries, self._keys, self._real, self._dtype = queries, keys, real, dtype
        self._made: dict[int | None, Tensor | None] = {}
        self.packing: Packing | None = None
        """How the new tokens are packed into one row, if they are; keys and values are not."""

    def of(self, window: int | None) -> Tensor | None:
        """The mask [R or 1, 1, T, L] of layers that see `window` tokens; None for plain causal attention."""
        if self._real is None and (window is None or window >= self._keys.shape[1]):
            return None
        if window not in self._made:
            self._made[window] = self._make(window)
        return self._made[window]

    def _make(self, window: int | None) -> Tensor:
        queries, keys = self._queries[:, :, None], self._keys[:, None]
        if self._real is None:
            queries, keys = queries[:1], keys[:1]
        allowed = keys <= queries
        if self._real is not None:
            allowed = allowed & self._real[:, None]
        if window is not None:
            allowed = allowed & (keys > queries - window)
        mask = torch.zeros(allowed.shape, dtype=self._dtype, device=allowed.device)
        return mask.masked_fill_(~allowed, -torch.inf)[:, None]


_masks: ContextVar[Masks] = ContextVar("masks of the running call")


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' `AttentionInterface`, with the masks of the running call.

    Args:
        module: the attention module; our students' have their window as `window`.
        query: [B, H, T, D], or packed [1, H, N, D]; key, value: [B, H / groups, L, D].
        attention_mask: None always (see above).
        scaling: factor on the products; None is D ** -0.5.
        sliding_window: window of transformers' own sliding layers.

    Returns:
        [B, T, H, D] (packed [1, N, H, D]) and None, as transformers expects.
    """
    masks = _masks.get()
    mask = masks.of(getattr(module, "window", sliding_window))
    if masks.packing is None:
        return _attention(query, key, value, mask, scaling), None
    return masks.packing.pack(_attention(masks.packing.heads(query), key, value, mask, scaling)), None


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    batch, heads, length, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    groups = heads // kv_heads
    if mask is None:
        # The fused kernels take grouped heads except in fp32 on CUDA, where torch would fall back to a
        # kernel that stores all scores.
        if groups > 1 and query.is_cuda and query.dtype == torch.float32:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            groups = 1
        out = scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scaling, enable_gqa=groups > 1
        )
        return out.transpose(1, 2)
    if groups > 1:
        query = query.reshape(batch, kv_heads, groups * length, width)
        if length > 1:
            mask = mask[:, :, None].expand(-1, -1, groups, -1, -1).reshape(-1, 1, groups * length, keys)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, length, -1).transpose(1, 2)


AttentionInterface.register(NAME, attend)


class Attention:
    """The softmax layers of a model, and which attention they use."""

    def __init__(self, model: PreTrainedModel) -> None:
        configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        self._configs = list({id(c): c for c in configs if hasattr(c, "_attn_implementation")}.values())

    @contextmanager
    def with_masks(self, masks: Masks) -> Iterator[None]:
        """Let all layers use `attend` with `masks`; afterwards they use again what they used before."""
        before = [config._attn_implementation for config in self._configs]
        token = _masks.set(masks)
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            yield
        finally:
            _masks.reset(token)
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name

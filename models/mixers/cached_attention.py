"""Softmax attention of an engine's passes, whose rows have caches of different lengths.

transformers repeats keys and values for all query heads whenever a mask is given. With grouped queries that
multiplies the KV traffic, which dominates a decode step. Here the query heads of a group are laid out along
the query axis instead, which computes the same sum.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from evalsuite.models.mixers.interface import AttentionSpan
from evalsuite.models.mixers.window_state import attend_with_state, runs_in_blocks
from evalsuite.models.ops.attention import decode_attention
from evalsuite.models.ops.numerics import soft_capped


class RowLayout(Protocol):
    """Where the tokens of padded rows lie in their concatenation; see `UnpaddedLayout`."""

    def pad_heads(self, x: Tensor) -> Tensor: ...

    def unpad(self, x: Tensor) -> Tensor: ...


class AttentionMasks:
    """Additive attention masks of one forward pass, one per span, built on first use.

    Args:
        queries: positions [R, T] of the new tokens.
        keys: positions [R or 1, L] of all keys, the new tokens' included.
        valid: bool [R, L], which keys exist; None if the keys are the new tokens themselves, in order, so
            that plain causal attention applies and right padding needs no mask.
        dtype: dtype of the attention scores.
    """

    def __init__(self, queries: Tensor, keys: Tensor, valid: Tensor | None, dtype: torch.dtype) -> None:
        self._queries, self._keys, self._valid, self._dtype = queries, keys, valid, dtype
        self._cache: dict[AttentionSpan, Tensor | None] = {}
        self.layout: RowLayout | None = None
        """Layout of un-padded queries, if the pass is un-padded; keys and values are always padded."""
        self.decode_positions: Tensor | None = None
        """Positions [R] of a decode step, in which a row's keys are those of all positions up to its own."""
        self.cache_places: Tensor | None = None
        """Index [R · T] in the cache of each new token's key, if layers store keys themselves."""
        self.branches: tuple[Tensor, Tensor] | None = None
        """Rows [R] of the parent cache that the rows continue and its lengths [P], if layers that store keys
        themselves read the parent's in place."""

    @property
    def built(self) -> bool:
        """Whether any layer needed a mask."""
        return bool(self._cache)

    def get(self, span: AttentionSpan) -> Tensor | None:
        """Mask [R or 1, 1, T, L] for layers with this span; None for plain causal attention."""
        if span.window is not None and span.window >= self._keys.shape[1]:
            # Nothing is that far back.
            span = AttentionSpan()
        if self._valid is None and span.window is None:
            return None
        if span not in self._cache:
            self._cache[span] = self._build(span)
        return self._cache[span]

    def _build(self, span: AttentionSpan) -> Tensor:
        queries, keys = self._queries[:, :, None], self._keys[:, None]
        if self._valid is None:
            queries, keys = queries[:1], keys[:1]
        allowed = span.visible(queries, keys)
        if self._valid is not None:
            allowed = allowed & self._valid[:, None]
        mask = torch.zeros(allowed.shape, dtype=self._dtype, device=allowed.device)
        return mask.masked_fill_(~allowed, -torch.inf)[:, None]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        span: AttentionSpan,
        scale: float | None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Attention of the new tokens.

        Args:
            query: [B, H, T, D], or un-padded [1, H, N, D].
            key, value: [B, H / groups, L, D].
            span: tokens that a query attends to.
            scale: factor on the products; None is D ** -0.5.
            soft_cap: cap · tanh(score / cap), if any (Gemma 2).

        Returns:
            [B, T, H, D], or un-padded [1, N, H, D].
        """
        if self.decode_positions is not None and soft_cap is None:
            step = query, key, value, self.decode_positions, scale or query.shape[-1] ** -0.5, span.window
            if decode_attention.applies(*step):
                return decode_attention(*step)
        if self.layout is not None:
            query = self.layout.pad_heads(query)
        if self._valid is None and runs_in_blocks(span, query.shape[2]):
            rows = (x.transpose(1, 2) for x in (query, key, value))
            scale = scale or query.shape[-1] ** -0.5
            mixed, _ = attend_with_state(
                *rows, span=span, scale=scale, cap=soft_cap, state=None, token_mask=None
            )
        else:
            mask = self.get(span)
            parts: list[Tensor] = []
            if mask is not None and self._valid is None and soft_cap is None:
                # The first window sees all before it, for which torch's fastest kernels need no mask.
                window = span.window
                q, k, v = (x[:, :, :window] for x in (query, key, value))
                parts = [grouped_attention(q, k, v, None, scale, None)]
                query, mask = query[:, :, window:], mask[:, :, window:]
            parts.append(grouped_attention(query, key, value, mask, scale, soft_cap))
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return mixed if self.layout is None else self.layout.unpad(mixed)


def grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    batch, heads, length, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    groups = heads // kv_heads
    if softcap is not None:
        return _soft_capped_attention(query, key, value, mask, scaling or width**-0.5, softcap)
    if mask is None:
        # The fused kernels accept grouped heads except in fp32 on CUDA, where torch would fall back to a
        # kernel that materialises all scores.
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


def _soft_capped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, cap: float
) -> Tensor:
    """As `grouped_attention`, with capped scores, which no fused kernel of torch computes."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = soft_capped(query @ key.transpose(2, 3) * scaling, cap)
    if mask is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    else:
        scores = scores + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    # A pad may attend to nothing; its NaN would reach other tokens through the next layer's values.
    weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
    return (weights @ value).transpose(1, 2)

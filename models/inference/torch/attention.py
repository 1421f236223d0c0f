"""Softmax attention for inference, called by transformers' attention modules; KV heads are never expanded.

transformers repeats keys and values for all query heads whenever a mask is given. With grouped queries that
multiplies the KV traffic, which dominates a decode step. Here the query heads of a group are laid out along
the query axis instead, which computes the same sum.

Masks are not passed through the model, because transformers builds a mask of its own for layers with a
sliding window, which is wrong for rows of different lengths. `attention_forward` takes the mask for its
window from a context variable.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from evalsuite.models.inference.torch.unpadding import UnpaddedLayout
from evalsuite.models.mixers import AttentionSpan, Mixer, SoftmaxMixer
from evalsuite.models.ops.attention import branch_attention, decode_attention, rotate_and_store

NAME = "evalsuite"


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
        self.layout: UnpaddedLayout | None = None
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
        if self._valid is None and (span.window is None or span.window >= self._keys.shape[1]):
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


_masks: ContextVar[AttentionMasks] = ContextVar("masks of the running forward pass")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers' `AttentionInterface`, with the masks of the running pass.

    Args:
        module: the attention module; the student's modules have their `span`.
        query: [B, H, T, D], or un-padded [1, H, N, D]; key, value: [B, H / groups, L, D].
        attention_mask: always None (see the module docstring).
        scaling: factor on the products; None is D ** -0.5.
        sliding_window: window of transformers' own sliding layers.
        softcap: soft cap of the scores, cap · tanh(score / cap), if any (Gemma 2).

    Returns:
        [B, T, H, D] (un-padded [1, N, H, D]) and None, as transformers expects.
    """
    masks = _masks.get()
    own = module.span if isinstance(module, Mixer) else None
    span = own or AttentionSpan(sliding_window)
    if masks.decode_positions is not None and span.window is None and softcap is None:
        step = query, key, value, masks.decode_positions, scaling or query.shape[-1] ** -0.5
        if decode_attention.applies(*step):
            return decode_attention(*step), None
    mask = masks.get(span)
    if masks.layout is None:
        return _grouped_attention(query, key, value, mask, scaling, softcap), None
    padded = _grouped_attention(masks.layout.pad_heads(query), key, value, mask, scaling, softcap)
    return masks.layout.unpad(padded), None


def _grouped_attention(
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
    """As `_grouped_attention`, with capped scores, which no fused kernel of torch computes."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = cap * torch.tanh(query @ key.transpose(2, 3) * scaling / cap)
    if mask is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    else:
        scores = scores + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    # A pad may attend to nothing; its NaN would reach other tokens through the next layer's values.
    weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
    return (weights @ value).transpose(1, 2)


AttentionInterface.register(NAME, attention_forward)


class AttentionOverride:
    """Switches the softmax layers of a model to `attention_forward` and back."""

    def __init__(self, model: PreTrainedModel) -> None:
        configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        self._configs = list({id(c): c for c in configs if hasattr(c, "_attn_implementation")}.values())

    @contextmanager
    def use_masks(self, masks: AttentionMasks) -> Iterator[None]:
        """Use `attention_forward` with `masks` in all layers; the previous implementation is restored."""
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


class FusedAttention:
    """Lets softmax layers rotate and store in one kernel, instead of about fourteen.

    Layers qualify if their class is one whose code is known, if they have no window, in half precision on a
    GPU, and if the kernel gives what transformers' own functions give on a sample. All others are left alone.
    """

    def __init__(self, model: nn.Module) -> None:
        found: list[Any] = [module for module in model.modules() if _is_fusible(module)]
        with torch.no_grad():
            applies = found and rotate_and_store.has_kernel(found[0].q_proj.weight, *_heads(found[0]))
        self._fused = found if applies else []
        self.active = True
        """Set to False to run the layers' own code, for comparison."""

    @property
    def applies(self) -> bool:
        """Whether there are such layers, and they may use the kernel."""
        return self.active and bool(self._fused)

    @property
    def branches(self) -> bool:
        """Whether these layers can read the keys of a parent cache in place."""
        layer: Any = self._fused[0]
        return branch_attention.has_kernel(layer.q_proj.weight, *_heads(layer))

    @contextmanager
    def enabled(self, masks: AttentionMasks) -> Iterator[None]:
        """Use the kernel within this context if its tokens have places in a cache; restores the model."""
        fused = self._fused if self.active and masks.cache_places is not None else []
        for module in fused:
            module.__dict__["forward"] = partial(_fused_forward, module)
        try:
            yield
        finally:
            for module in fused:
                del module.__dict__["forward"]


def _is_fusible(module: Any, devices: tuple[str, ...] = ("cuda",)) -> bool:
    if not isinstance(module, SoftmaxMixer):
        return False
    shape, weight = module.attention_shape, module.q_proj.weight
    known = shape.rotary and shape.qk_norm != "all_heads" and shape.soft_cap is None
    plain = known and module.span.window is None and shape.head_dim <= 256 and shape.head_dim % 2 == 0
    half = weight.dtype in (torch.bfloat16, torch.float16)
    return plain and half and weight.device.type in devices


def _heads(layer: Any) -> tuple[int, int, int]:
    """Numbers of query and key heads, and their width."""
    heads, kv_heads = (len(each.weight) // layer.head_dim for each in (layer.q_proj, layer.k_proj))
    return heads, kv_heads, layer.head_dim


def _fused_forward(
    module: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    past_key_values: Any = None,
    cache: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Forward pass of a fusible layer, hidden states [R, T, width]."""
    masks = _masks.get()
    places = masks.cache_places
    assert places is not None
    rows, tokens = hidden_states.shape[:2]
    projected = (module.q_proj(hidden_states), module.k_proj(hidden_states), module.v_proj(hidden_states))
    query, key, value = (x.flatten(0, 1).unflatten(-1, (-1, module.head_dim)) for x in projected)
    if hasattr(module, "q_norm"):
        query, key = module.q_norm(query), module.k_norm(key)
    caches: Any = past_key_values if cache is None else cache
    room = caches.room if masks.branches is None else caches.room_apart
    keys, values, *parents = room(module.layer_idx, key, value, rows)
    query, _, _ = rotate_and_store(query, key, value, *position_embeddings, keys, values, places)
    query = query.unflatten(0, (rows, tokens))
    if masks.branches is None:
        out, _none = attention_forward(module, query.transpose(1, 2), keys, values, None, module.scaling)
    else:
        parent_rows, lengths = masks.branches
        out = branch_attention(
            query, keys, values, parents[0], parents[1], parent_rows, lengths, module.scaling
        )
    return module.o_proj(out.flatten(2)), None

"""Softmax attention, full or with a sliding window: the teacher's own attention as a mixer.

A softmax layer keeps the teacher's projections and norms under their names, and computes to the last bit what
the teacher's module in transformers computes, whose attention functions it calls.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# That of other families lacks the soft cap, and is otherwise the same.
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.attention_shape import AttentionShape
from evalsuite.models.mixers.cached_attention import AttentionMasks
from evalsuite.models.mixers.interface import (
    MIXERS,
    AttentionSpan,
    CacheSpec,
    LayerCache,
    Mixer,
    ServedAs,
    StateKind,
    layer_cache,
)
from evalsuite.models.mixers.layers import (
    add_norm,
    norm_queries_and_keys,
    pad_groups,
    repeat_heads,
    unpad_groups,
)
from evalsuite.models.mixers.window_state import attend_with_state, state_shapes
from evalsuite.models.ops.attention import branch_attention, rotate_and_store
from evalsuite.models.ops.numerics import soft_capped
from evalsuite.models.ops.rotary import rotary

SOFTMAX_INITS = {"teacher": "qkvo", "qkv": "qkv", "vo": "vo", "random": ""}
"""Projections that are copied into softmax layers, by their option `init`."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxOptions:
    """The teacher's layer, unless an option says otherwise."""

    init: Literal["teacher", "qkv", "vo", "random"] = "teacher"
    """Projections copied from the teacher: all, or those named; the others start at random. A Transformer
    distilled into a Transformer is the control of arXiv 2504.14366v1, Table 2."""
    rotary: bool = True
    """Rotate queries and keys as the teacher does. Without it the layer has no positions, those of a hybrid
    being in its recurrent layers (HypeNet, arXiv 2601.22156, section 5.1)."""
    logit_scale_base: float = 0.0
    """a: scale the logits of a query at position t by log(t + a) / log(a), for texts longer than those of
    training (arXiv 2601.22156, Eq. 11); 0 for none. Needs `rotary: false`."""

    def __post_init__(self) -> None:
        base = self.logit_scale_base
        if base and not base > 1:
            raise ConfigError(f"logit_scale_base = {base}: must be 0 or above 1")
        if base and self.rotary:
            raise ConfigError(
                f"logit_scale_base = {base}: is for layers without positions; set rotary: false"
            )


@dataclass(frozen=True, kw_only=True)
class SlidingWindowOptions(SoftmaxOptions):
    window: int = 256
    """Number of latest tokens a query attends to, itself included."""
    sinks: int = 0
    """Number of first tokens that every query attends to as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("window", 1), ("sinks", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be {least} or more")


@MIXERS.register("softmax")
class SoftmaxMixer(Mixer):
    """The teacher's attention, with its projections and norms under their names.

    Args:
        attention: the teacher's attention module, whose submodules the mixer takes over.
        shape: its shape.
        options: an instance of `Options`.
        layer: layer index, for the cache.
        window: the teacher's own sliding window in this layer, if any.
    """

    display_name = "softmax"
    Options = SoftmaxOptions
    state_kind = StateKind.FULL
    is_teacher_layer = True
    uses_init = False
    served_as: ServedAs = "attention"
    span: AttentionSpan
    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any

    def __init__(
        self, attention: nn.Module, shape: AttentionShape, options: Any, *, layer: int, window: int | None
    ) -> None:
        super().__init__()
        if not options.rotary:
            shape = replace(shape, rotary=False)
        self.attention_shape, self.options, self.layer_idx = shape, options, layer
        self.span = self.make_span(options, window)
        # What transformers' attention functions read of a module.
        self.config: Any = attention.config
        self.num_key_value_groups = shape.num_kv_groups
        self.is_causal = True
        self.head_dim = shape.head_dim
        self.scaling = shape.head_dim**-0.5 if shape.scaling is None else shape.scaling
        if self.span.sinks or not options.rotary:
            self.served_as = None
        for name, module in attention.named_children():
            self.add_module(name, module)

    @classmethod
    def make_span(cls, options: Any, teacher_window: int | None) -> AttentionSpan:
        """Tokens that a query attends to, given the window of the teacher's layer."""
        return AttentionSpan(teacher_window)

    def copy_from_teacher(self, attention: nn.Module, init: str) -> None:
        """Copy the projections, with their norms, that the option `init` names; the others stay as drawn.

        The argument `init` is for mixers that replace attention.
        """
        source = attention.state_dict()
        chosen = {name: x for name, x in source.items() if name[0] in SOFTMAX_INITS[self.options.init]}
        found = self.load_state_dict(chosen, strict=False)
        assert not found.unexpected_keys
        assert set(found.missing_keys) == source.keys() - chosen.keys()

    def position_embeddings(
        self, rotary: tuple[Tensor, Tensor], position_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        base = self.options.logit_scale_base
        if not base:
            return rotary
        scale = torch.log(position_ids.float() + base).unsqueeze(-1) / math.log(base)
        return scale, torch.zeros_like(scale)

    def cache_spec(self) -> CacheSpec:
        """Keys and values per token; with sinks a state of constant size."""
        shape = self.attention_shape
        if self.span.sinks:
            heads, width = shape.num_kv_heads, shape.head_dim
            return CacheSpec(states=state_shapes(self.span, heads, width, width))
        return CacheSpec(kv_width=2 * shape.num_kv_heads * shape.head_dim, span=self.span)

    def mixing_flops(self, length: int) -> float:
        """FLOPs per token of scores and weighted values."""
        width = self.attention_shape.num_heads * self.head_dim
        return 4 * width * self.span.mean_length(length)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | AttentionMasks | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        past_key_values: Any = None,
        cache: Any = None,
        **attention: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, as transformers' attention modules do.

        Args:
            hidden_states: [B, T, hidden].
            position_embeddings: cos and sin [1 or B, T, D], or what the method of that name returned.
            attention_mask: of the layer's span, [1 or B, 1, T, past + T]; None for plain causal attention. If
                one row of packed sequences comes with a mask of several rows, no sequence crosses a mask row,
                and the rows are attended to as a batch. An engine gives `AttentionMasks` of its pass.
            token_mask, cu_seqlens: part of the attention mask already, which a layer with sinks needs for
                packed sequences only.
            past_key_values, cache (from transformers 5.24 on): keys and values of the tokens before.
            attention: passed to the attention function.

        Returns:
            The output [B, T, hidden], and the attention weights [B, H, T, past + T] from eager attention.
        """
        caches = past_key_values if cache is None else cache
        if self.span.sinks:
            own = layer_cache(caches, self.layer_idx)
            if cu_seqlens is None:
                return self._attend_with_sinks(hidden_states, position_embeddings, token_mask, own), None
            if own is not None:
                raise ConfigError(
                    f"layer {self.layer_idx}: {self.name} with sinks = {self.span.sinks} cannot continue "
                    "packed sequences from their states"
                )
        if isinstance(attention_mask, AttentionMasks):
            mixed = self._attend_cached(hidden_states, position_embeddings, attention_mask, caches)
            return self._output(mixed), None
        shape = hidden_states.shape
        if attention_mask is not None and cu_seqlens is not None and (rows := len(attention_mask)) > 1:
            hidden_states = hidden_states.reshape(rows, -1, shape[-1])
            cos, sin = (part.reshape(rows, -1, part.shape[-1]) for part in position_embeddings)
            position_embeddings = cos, sin
        implementation = self.config._attn_implementation
        if attention_mask is not None and attention_mask.dtype == torch.bool and implementation == "eager":
            attention_mask = additive_mask(attention_mask, hidden_states.dtype)
        q, k, v = (x.transpose(1, 2) for x in self.project(hidden_states, position_embeddings))
        if caches is not None:
            k, v = caches.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        mixed, weights = attend(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.span.window,
            softcap=self.attention_shape.soft_cap,
            **attention,
        )
        return self._output(mixed.reshape(*shape[:-1], *mixed.shape[-2:])), weights

    @property
    def stores_keys(self) -> bool:
        """Whether one kernel rotates keys and stores them in an engine's cache, instead of about fourteen."""
        shape = self.attention_shape
        plain = shape.rotary and shape.qk_norm != "all_heads" and shape.soft_cap is None
        if not plain or self.head_dim > 256 or self.head_dim % 2:
            return False
        return rotate_and_store.has_kernel(self.q_proj.weight, *self._heads)

    @property
    def reads_parents(self) -> bool:
        """Whether a kernel reads keys of the rows that an engine's rows continue where they are."""
        return branch_attention.has_kernel(self.q_proj.weight, *self._heads)

    @property
    def _heads(self) -> tuple[int, int, int]:
        shape = self.attention_shape
        return shape.num_kv_heads * shape.num_kv_groups, shape.num_kv_heads, self.head_dim

    def _output(self, mixed: Tensor) -> Tensor:
        """The layer's output of mixed values [B, T, H, D]."""
        sizes = self.attention_shape.kv_group_sizes
        return self.o_proj((unpad_groups(mixed, sizes) if sizes else mixed).flatten(2))

    def _attend_cached(
        self, hidden_states: Tensor, rotary: tuple[Tensor, Tensor], masks: AttentionMasks, caches: Any
    ) -> Tensor:
        """Mixed values [R, T, H, D] of an engine's pass."""
        if masks.cache_places is None or not self.stores_keys:
            q, k, v = (x.transpose(1, 2) for x in self.project(hidden_states, rotary))
            k, v = caches.update(k, v, self.layer_idx)
            return masks.attend(q, k, v, self.span, self.scaling, self.attention_shape.soft_cap)
        (cos, sin), (rows, tokens) = rotary, hidden_states.shape[:2]
        query, key, value = (x.flatten(0, 1) for x in self._project(hidden_states))
        room = caches.room if masks.branches is None else caches.room_apart
        keys, values, *parents = room(self.layer_idx, key, value, rows)
        query, _, _ = rotate_and_store(query, key, value, cos, sin, keys, values, masks.cache_places)
        query = query.unflatten(0, (rows, tokens))
        if masks.branches is None:
            return masks.attend(query.transpose(1, 2), keys, values, self.span, self.scaling)
        parent_keys, parent_values = parents
        parent_rows, lengths = masks.branches
        return branch_attention(
            query,
            keys,
            values,
            parent_keys,
            parent_values,
            parent_rows,
            lengths,
            self.scaling,
            self.span.window,
        )

    def _attend_with_sinks(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        token_mask: Tensor | None,
        own: LayerCache | None,
    ) -> Tensor:
        mixed, state = attend_with_state(
            *self.project(hidden_states, position_embeddings),
            span=self.span,
            scale=self.scaling,
            cap=self.attention_shape.soft_cap,
            state=None if own is None else own.read(),
            token_mask=token_mask,
        )
        if own is not None:
            own.write(state)
        return self._output(mixed)

    def project(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, T, H, D], keys and values [B, T, H / groups, D], normalised and rotated.

        Groups of query heads that differ in size are filled with zeros, so that keys need not be copied.
        """
        q, k, v = self._project(hidden_states)
        if self.options.logit_scale_base:
            q = (q * position_embeddings[0].unsqueeze(2)).to(q.dtype)
        if not self.attention_shape.rotary:
            return q, k, v
        # OLMo's angles are float32, whatever the dtype, and so are its products with them.
        exact = torch.promote_types(q.dtype, position_embeddings[0].dtype)
        q, k = (rotary(x.to(exact), *position_embeddings).to(v.dtype) for x in (q, k))
        return q, k, v

    def _project(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same before rotation."""
        q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        norm = self.attention_shape.qk_norm
        if norm == "all_heads":
            q, k = self._norm(self.q_norm, q), self._norm(self.k_norm, k)
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        if norm == "head":
            q, k = norm_queries_and_keys(self.q_norm, q, self.k_norm, k, self.attention_shape.norm_gain)
        sizes = self.attention_shape.kv_group_sizes
        return pad_groups(q, sizes) if sizes else q, k, v

    def _norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        return add_norm(norm, x, None, self.attention_shape.norm_gain)[0]

    def attention_matrix(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention matrix [B, H, T, T] and the values [B, T, H, V] that it mixes."""
        assert position_embeddings is not None
        q, k, v = self.project(hidden_states, position_embeddings)
        k, v = (repeat_heads(x, q.shape[2]) for x in (k, v))
        if sizes := self.attention_shape.kv_group_sizes:
            q, k, v = (unpad_groups(x, sizes) for x in (q, k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k).float() * self.scaling
        return self.span.softmax(soft_capped(scores, self.attention_shape.soft_cap), token_mask), v


@MIXERS.register("sliding_window")
class SlidingWindowMixer(SoftmaxMixer):
    """Softmax attention over the latest tokens."""

    display_name = "sliding window"
    Options = SlidingWindowOptions
    state_kind = StateKind.WINDOW
    is_teacher_layer = False
    needs_mask = True
    options: SlidingWindowOptions

    @classmethod
    def make_span(cls, options: SlidingWindowOptions, teacher_window: int | None) -> AttentionSpan:
        """The smaller of the two windows."""
        return AttentionSpan(min(options.window, teacher_window or options.window), options.sinks)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask to add to scores, as eager attention does, from one that is true where a query attends."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)

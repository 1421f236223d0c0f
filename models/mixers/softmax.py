"""Softmax attention, full or with a sliding window: the teacher's own attention module as a mixer.

The subclass made here adds the interface of a mixer to the teacher's class, so that a softmax layer keeps the
teacher's weights and parameter names and computes exactly what the teacher computes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.attention_shape import AttentionShape, qk_norm_kind, rotates, soft_cap
from evalsuite.models.mixers.interface import (
    MIXERS,
    AttentionSpan,
    CacheSpec,
    Mixer,
    ServedAs,
    StateKind,
    layer_cache,
)
from evalsuite.models.mixers.teacher_weights import SOFTMAX_INITS, copy_softmax
from evalsuite.models.mixers.window_state import attend_with_state, state_shapes
from evalsuite.models.ops.rotary import rotary


@dataclass(frozen=True, kw_only=True)
class SoftmaxOptions:
    """The teacher's layer, unless `init` says otherwise."""

    init: Literal["teacher", "qkv", "vo", "random"] = "teacher"
    """Projections copied from the teacher: all, or those named; the others start at random. A Transformer
    distilled into a Transformer is the control of arXiv 2504.14366v1, Table 2."""


@dataclass(frozen=True, kw_only=True)
class SlidingWindowOptions(SoftmaxOptions):
    window: int = 256
    """Number of latest tokens a query attends to, itself included."""
    sinks: int = 0
    """Number of first tokens that every query attends to as well."""

    def __post_init__(self) -> None:
        for name, least in (("window", 1), ("sinks", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be {least} or more")


@MIXERS.register("softmax")
class SoftmaxMixer(Mixer):
    """The teacher's attention. A mixin for the teacher's attention class."""

    display_name = "softmax"
    Options: ClassVar[type] = SoftmaxOptions
    state_kind = StateKind.FULL
    is_teacher_layer = True
    uses_init = False
    served_as: ServedAs = "attention"
    options: SoftmaxOptions
    span: AttentionSpan
    masked_by_decoder: ClassVar[bool] = True
    """Whether the layer is plain attention under the mask that it is given."""
    cache_width: int
    """Widths of key and value, summed over heads."""
    query_width: int

    @classmethod
    def from_attention(
        cls,
        attention: nn.Module,
        shape: AttentionShape,
        options: Any,
        *,
        layer: int,
        window: int | None,
    ) -> nn.Module:
        """The attention becomes the mixer, in place."""
        mixer: Any = attention
        mixer.__class__ = _mixer_class(cls, type(attention))
        mixer.options, mixer.span = options, cls.make_span(options, window)
        mixer.cache_width = 2 * shape.num_kv_heads * shape.head_dim
        mixer.query_width = shape.num_heads * shape.head_dim
        return attention

    @classmethod
    def make_span(cls, options: Any, teacher_window: int | None) -> AttentionSpan:
        """Tokens that a query attends to, given the window of the teacher's layer."""
        return AttentionSpan(teacher_window)

    def __reduce__(self) -> Any:
        # pickle finds classes by name, which a class made at run time has none of.
        return _blank, type(self).__bases__, self.__dict__

    def copy_from_teacher(self, attention: nn.Module, init: str, kv_expansion: str) -> None:
        """The option `init` decides instead of `init`."""
        assert isinstance(self, nn.Module)
        copy_softmax(self, attention, SOFTMAX_INITS[self.options.init])

    def cache_spec(self) -> CacheSpec:
        return CacheSpec(kv_width=self.cache_width, span=self.span)

    def mixing_flops(self, length: int) -> float:
        """Scores and weighted values."""
        return 4 * self.query_width * self.span.mean_length(length)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        token_mask: Any = None,
        cu_seqlens: Any = None,
        **attention: Any,
    ) -> tuple[Tensor, Any]:
        """Attend. `token_mask` and `cu_seqlens` are already part of the attention mask.

        If one row of packed sequences comes with a mask of several rows, no sequence crosses a mask row, and
        the rows are attended to as a batch.
        """
        shape = hidden_states.shape
        rows = 1 if attention_mask is None or cu_seqlens is None else attention_mask.shape[0]
        if rows > 1:
            hidden_states = hidden_states.reshape(rows, -1, shape[-1])
            cosine, sine = (part.reshape(rows, -1, part.shape[-1]) for part in position_embeddings)
            position_embeddings = (cosine, sine)
        mixer: Any = self
        boolean = attention_mask is not None and attention_mask.dtype == torch.bool
        if attention_mask is not None and boolean and mixer.config._attn_implementation == "eager":
            attention_mask = additive_mask(attention_mask, hidden_states.dtype)
        result: tuple[Tensor, Any] = super().forward(  # type: ignore[misc]
            hidden_states=hidden_states,
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            **attention,
        )
        return (result[0].reshape(shape), result[1]) if rows > 1 else result

    def project(
        self: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, T, H, D], keys and values [B, T, H / groups, D], normalised and rotated."""
        q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        norm = qk_norm_kind(self)
        if norm == "all_heads":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        if norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if not rotates(self):
            return q, k, v
        return rotary(q, *position_embeddings), rotary(k, *position_embeddings), v

    def attention_matrix(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention matrix [B, H, T, T] and the values [B, T, H, V] that it mixes."""
        assert position_embeddings is not None
        q, k, v = self.project(hidden_states, position_embeddings)
        k = k.repeat_interleave(self.num_key_value_groups, 2)
        v = v.repeat_interleave(self.num_key_value_groups, 2)
        scores = torch.einsum("bthd,bshd->bhts", q, k).float() * self.scaling
        if cap := soft_cap(self):
            scores = cap * torch.tanh(scores / cap)
        places = torch.arange(scores.shape[-1], device=scores.device)[None]
        if token_mask is not None:
            places = token_mask.int().cumsum(1) - 1
        visible = self.span.visible(places[:, :, None], places[:, None])[:, None]
        if token_mask is not None:
            visible = visible & token_mask[:, None, None, :]
        # The softmax over a pad's empty row is NaN; its value is never used.
        return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(), v


@MIXERS.register("sliding_window")
class SlidingWindowMixer(SoftmaxMixer):
    """Softmax attention over the latest tokens."""

    display_name = "sliding window"
    Options: ClassVar[type] = SlidingWindowOptions
    state_kind = StateKind.WINDOW
    is_teacher_layer = False
    needs_mask = True
    options: SlidingWindowOptions

    @classmethod
    def make_span(cls, options: SlidingWindowOptions, teacher_window: int | None) -> AttentionSpan:
        """The smaller of the two windows."""
        return AttentionSpan(min(options.window, teacher_window or options.window), options.sinks)

    @classmethod
    def from_attention(
        cls,
        attention: nn.Module,
        shape: AttentionShape,
        options: Any,
        *,
        layer: int,
        window: int | None,
    ) -> nn.Module:
        kind = SinkWindowMixer if options.sinks and cls is SlidingWindowMixer else cls
        return super(SlidingWindowMixer, kind).from_attention(
            attention, shape, options, layer=layer, window=window
        )


class SinkWindowMixer(SlidingWindowMixer):
    """A sliding window with sinks: a state of constant size instead of keys and values per token."""

    served_as = None
    masked_by_decoder = False

    def cache_spec(self) -> CacheSpec:
        mixer: Any = self
        kv_heads = self.cache_width // (2 * mixer.head_dim)
        return CacheSpec(states=state_shapes(self.span, kv_heads, mixer.head_dim, mixer.head_dim))

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        past_key_values: Any = None,
        cache: Any = None,
        **attention: Any,
    ) -> tuple[Tensor, Any]:
        """Attend; packed sequences by their `attention_mask`, as in `SoftmaxMixer`."""
        own = layer_cache(past_key_values if cache is None else cache, self.layer_idx)
        if cu_seqlens is not None:
            if own is not None:
                raise ConfigError(
                    f"layer {self.layer_idx}: {self.name} with sinks = {self.span.sinks} cannot continue "
                    "packed sequences from their states"
                )
            result: tuple[Tensor, Any] = super().forward(
                hidden_states, position_embeddings, attention_mask, token_mask, cu_seqlens, **attention
            )
            return result
        q, k, v = self.project(hidden_states, position_embeddings)
        mixed, state = attend_with_state(
            q,
            k,
            v,
            span=self.span,
            scale=self.scaling,
            cap=soft_cap(self),
            state=None if own is None else own.read(),
            token_mask=token_mask,
        )
        if own is not None:
            own.write(state)
        return self.o_proj(mixed.flatten(2)), None


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask to add to scores, as eager attention does, from one that is true where a query attends."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


_CLASSES: dict[tuple[type, type], type[nn.Module]] = {}


def _mixer_class(mixin: type[SoftmaxMixer], attention: type[nn.Module]) -> type[nn.Module]:
    """The class `attention` with the interface of `mixin`, made once."""
    if (mixin, attention) not in _CLASSES:
        name = f"{mixin.__name__.removesuffix('Mixer')}{attention.__name__}"
        _CLASSES[mixin, attention] = type(name, (mixin, attention), {})
    return _CLASSES[mixin, attention]


def _blank(mixin: type[SoftmaxMixer], attention: type[nn.Module]) -> nn.Module:
    kind = _mixer_class(mixin, attention)
    return kind.__new__(kind)

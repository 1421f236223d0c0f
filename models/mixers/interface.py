"""The interface of token mixers: what student, engines, trainer and statistics need to know of a layer.

Two families implement it: `RecurrentMixer` replaces the teacher's attention by a recurrence, `SoftmaxMixer`
keeps the teacher's attention module. A mixer of another kind implements `Mixer` itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Flag, auto
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from evalsuite.foundation.registry import ClassRegistry
from evalsuite.models.mixers.attention_shape import AttentionShape
from evalsuite.models.ops.recurrence import StateAccess


class StateKind(Flag):
    """What a layer remembers of the past; a layer that combines two has both flags."""

    RECURRENT = auto()
    """A state of constant size."""
    WINDOW = auto()
    """Keys and values of the latest tokens."""
    FULL = auto()
    """Keys and values of all tokens that the teacher's own layer attends to."""


MixerState = dict[str, Tensor]
"""State of one recurrent layer by name: "recurrent" [B, H, K, V] in float32, and "convolution"
[B, C, kernel_size − 1] if the layer has short convolutions."""


class LayerCache(Protocol):
    """Cache of one recurrent layer between calls."""

    def read(self) -> MixerState | None:
        """Return the last state, or None."""

    def lend(self, *, slots: bool) -> tuple[MixerState | None, StateAccess]:
        """Return the last state as it is stored, or None, and how it may be used.

        Args:
            slots: whether the layer can find its rows' states among others.
        """

    def write(self, state: MixerState) -> None:
        """Store `state`, of which lent parts may have been written in place."""


def layer_cache(caches: Any, layer: int) -> LayerCache | None:
    """The cache of a layer among those of all layers; None without them."""
    return None if caches is None else cast(LayerCache, caches.layers[layer])


ServedAs = Literal["recurrence", "attention"] | None


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Tokens that a query of softmax attention attends to."""

    window: int | None = None
    """Number of latest tokens, the query's own included; None for all."""
    sinks: int = 0
    """Number of first tokens that are attended to as well, however far back."""

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Whether queries attend to keys, by position in their sequence: bool, in the shape of the two
        broadcast."""
        seen = keys <= queries
        if self.window is None:
            return seen
        near = keys > queries - self.window
        return seen & (near | (keys < self.sinks) if self.sinks else near)

    def softmax(self, scores: Tensor, token_mask: Tensor | None) -> Tensor:
        """Softmax of scores [B, H, T, T] over what queries attend to; rows and columns of pads are zero."""
        places = torch.arange(scores.shape[-1], device=scores.device)[None]
        if token_mask is not None:
            places = token_mask.int().cumsum(1) - 1
        visible = self.visible(places[:, :, None], places[:, None])[:, None]
        if token_mask is not None:
            visible = visible & token_mask[:, None, None, :] & token_mask[:, None, :, None]
        return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()

    def mean_length(self, length: int) -> float:
        """Tokens that a query attends to, averaged over a sequence of `length` tokens."""
        whole = length if self.window is None else min(length, self.window + self.sinks)
        return (whole * (whole + 1) / 2 + (length - whole) * whole) / length


FOUR_BYTES = ("recurrent", "length")
"""Parts of a state in float32 or int32, whatever the model's dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What one sequence occupies in the cache of a layer."""

    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the parts of a state of constant size; those in `FOUR_BYTES` have four bytes a number, all
    others the model's dtype."""
    kv_width: int = 0
    """Numbers per cached token: the widths of key and value, summed over heads."""
    span: AttentionSpan | None = None
    """Tokens whose keys and values are needed; None without keys and values."""

    def num_tokens(self, length: int) -> int:
        """Tokens whose keys and values are cached after `length` tokens."""
        if self.span is None:
            return 0
        return length if self.span.window is None else min(length, self.span.window - 1)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the recurrent state, whatever the length."""
        return sum(
            torch.Size(shape).numel() * (4 if name in FOUR_BYTES else dtype.itemsize)
            for name, shape in self.states.items()
        )

    def bytes(self, length: int, dtype: torch.dtype) -> int:
        """Bytes of one sequence after `length` tokens in a model of `dtype`."""
        return self.state_bytes(dtype) + self.kv_width * dtype.itemsize * self.num_tokens(length)


class Mixer(nn.Module):
    """Token mixer of one layer, with the call of transformers' attention modules."""

    name: ClassVar[str]
    """The name it is registered under."""
    display_name: ClassVar[str]
    """Name in text, e.g. "Gated DeltaNet"."""
    Options: ClassVar[type]
    """Frozen dataclass of its options; see `evalsuite.models.mixers.options`."""
    state_kind: StateKind
    is_teacher_layer: ClassVar[bool] = False
    """True if the layer is the teacher's own, which stages that train mixers leave alone."""
    uses_init: ClassVar[bool] = True
    """Whether the student's `init` says which of the teacher's projections are copied."""
    needs_mask: ClassVar[bool] = False
    """Whether the layer depends on the attention mask for its span, which flash attention ignores."""
    served_as: ServedAs = None
    """How vLLM serves the layer: by the shared recurrence, by vLLM's attention, or not at all."""
    matrix_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters of the mixer itself that are matrices between activations, so that weight decay applies; its
    linear layers need no mention. All others (gate biases, decay rates, norms) never decay."""
    spans_layers: bool = False
    """True if parameters of other layers take part, so that the layer cannot run without them."""
    span: AttentionSpan | None = None
    """Span of its softmax attention, by which the decoder builds its mask; None without softmax attention."""
    softmax_heads: tuple[int, ...] = ()
    """Query heads of the teacher that stay softmax in a recurrent layer."""
    weights_initialized: bool = False
    """Set after `reset_parameters`; guards against re-initialising loaded weights."""

    @classmethod
    def from_attention(
        cls, attention: nn.Module, shape: AttentionShape, options: Any, *, layer: int, window: int | None
    ) -> nn.Module:
        """Make the mixer that replaces a layer's attention, with random parameters.

        Args:
            attention: module of the teacher's architecture; a mixer may take it over.
            shape: its shape.
            options: an instance of `Options`.
            layer: layer index, for the cache and for messages.
            window: the teacher's own sliding window in this layer, if any.
        """
        return cls(attention, shape, options, layer=layer, window=window)

    def copy_from_teacher(self, attention: nn.Module, init: str) -> None:
        """Copy the teacher's projections.

        Args:
            attention: the teacher's attention module.
            init: name of an initialization; see `evalsuite.models.inits`.
        """
        raise NotImplementedError

    def position_embeddings(
        self, rotary: tuple[Tensor, Tensor], position_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What this layer gets as `position_embeddings`.

        Args:
            rotary: the teacher's cos and sin [1 or B, T, D].
            position_ids: [1 or B, T].
        """
        return rotary

    def cache_spec(self) -> CacheSpec:
        """What one sequence occupies in this layer's cache."""
        raise NotImplementedError

    def mixing_flops(self, length: int) -> float:
        """FLOPs per token of mixing alone, without projections; see `flops`."""
        raise NotImplementedError

    def flops(self, length: int) -> float:
        """FLOPs of one token's forward pass, averaged over a sequence of `length` tokens.

        Matrix products only, two per multiply-add; a recurrence counts in its step-by-step form.
        """
        weights = [module.weight for module in self.modules() if isinstance(module, nn.Linear)]
        weights += [getattr(self, name) for name in self.matrix_parameters if hasattr(self, name)]
        return 2 * sum(weight.numel() for weight in weights) + self.mixing_flops(length)

    def reset_parameters(self) -> None:
        """Set the initial values that are not random. Runs after all linear layers are initialised."""

    def link_layers(self, mixers: Sequence[nn.Module]) -> None:
        """Hear of the mixers of all layers, in order, once they are made."""

    def attention_matrix(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Materialise the matrix by which the layer mixes values, before output norm and output gate.

        Returns:
            A [B, H, T, T], lower triangular, and the values V [B, T, H, V], with A V the mixed values.
            Differentiable; memory grows with T².
        """
        raise NotImplementedError


def _validate(kind: type[Mixer]) -> type[Mixer]:
    if not (isinstance(kind, type) and issubclass(kind, Mixer)):
        raise TypeError("it must be a class derived from evalsuite.models.mixers.Mixer")
    options = getattr(kind, "Options", None)
    for attribute, what, fits in (
        ("display_name", "a string", isinstance(getattr(kind, "display_name", None), str)),
        ("Options", "a dataclass", isinstance(options, type) and is_dataclass(options)),
        ("state_kind", "a StateKind", isinstance(getattr(kind, "state_kind", None), StateKind)),
    ):
        if not fits:
            raise TypeError(f"{kind.__name__}.{attribute} must be {what}")
    return kind


MIXERS: ClassRegistry[Mixer] = ClassRegistry("mixer", group="evalsuite.mixers", validate=_validate)
"""Mixers by name: each module of this folder registers its own, `@MIXERS.register("gla")`."""

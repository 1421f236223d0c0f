"""Token mixers by name: every module of this folder is imported, and registers its mixers in `MIXERS`."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from evalsuite.foundation.registry import import_submodules
from evalsuite.models.mixers.attention_shape import AttentionShape
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.interface import (
    MIXERS,
    AttentionSpan,
    CacheSpec,
    LayerCache,
    Mixer,
    MixerState,
    StateKind,
)
from evalsuite.models.mixers.options import option_defaults, parse_options
from evalsuite.models.mixers.softmax import SlidingWindowMixer, SoftmaxMixer
from evalsuite.models.mixers.softmax_heads import SoftmaxHeadsMixer, check_heads, divide_attention
from evalsuite.models.ops.recurrence import RecurrenceInputs
from evalsuite.models.ops.rms_norm import Gain

import_submodules(__name__, __path__)


def make_mixer(
    name: str,
    attention: nn.Module,
    options: dict[str, Any],
    *,
    layer: int,
    norm_eps: float,
    window: int | None,
    gain: Gain | None = None,
    softmax_heads: Sequence[int] = (),
    softmax_options: dict[str, Any] | None = None,
) -> nn.Module:
    """Make the mixer that replaces `attention`, a module of the teacher's architecture.

    Args:
        name: the mixer.
        attention: the teacher's attention module; softmax mixers convert it in place.
        options: the recipe's options for this mixer.
        layer: layer index, for the cache and for messages.
        norm_eps: epsilon of the teacher's norms.
        window: the teacher's own sliding window in this layer, if any.
        gain: how the weights of the teacher's norms multiply, if known.
        softmax_heads: query heads that stay softmax, in ascending order; the others are the mixer's.
        softmax_options: options of softmax heads.

    Raises:
        ConfigError: unknown mixer or option, an attention module that no mixer can replace, or heads that
            cannot stay softmax.
    """
    where = f"layer {layer}, {name}"
    kind = MIXERS.get_or_raise(name, where)
    shape = AttentionShape.from_attention(attention, norm_eps, layer, gain)
    parsed: Any = parse_options(kind.Options, options, where)
    if softmax_heads:
        check_heads(softmax_heads, shape, kind, parsed, where)
        parts = divide_attention(attention, shape, softmax_heads)
        common: dict[str, Any] = {"layer": layer, "norm_eps": norm_eps, "window": window, "gain": gain}
        softmax: Any = make_mixer("softmax", parts[0], softmax_options or {}, **common)
        recurrent: Any = make_mixer(name, parts[1], options, **common)
        return SoftmaxHeadsMixer(softmax, recurrent, softmax_heads, shape.num_heads)
    return kind.from_attention(attention, shape, parsed, layer=layer, window=window)


__all__ = [
    "MIXERS",
    "AttentionShape",
    "AttentionSpan",
    "CacheSpec",
    "LayerCache",
    "Mixer",
    "MixerState",
    "RecurrenceInputs",
    "RecurrentMixer",
    "SlidingWindowMixer",
    "SoftmaxHeadsMixer",
    "SoftmaxMixer",
    "StateKind",
    "make_mixer",
    "option_defaults",
    "parse_options",
]

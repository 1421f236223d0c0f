"""Token mixers by name."""

from typing import Any

from torch import nn

from evalsuite.foundation import ConfigError, nearest
from evalsuite.models.mixers.attention_shape import AttentionShape, repeat_kv_weights
from evalsuite.models.mixers.base import LayerCache, MixerState, RecurrenceInputs, RecurrentMixer
from evalsuite.models.mixers.deltanet import DeltaNet
from evalsuite.models.mixers.gated_deltanet import GatedDeltaNet
from evalsuite.models.mixers.gla import GLA
from evalsuite.models.mixers.hedgehog import Hedgehog
from evalsuite.models.mixers.hgrn2 import HGRN2, link_lower_bounds
from evalsuite.models.mixers.kda import KDA
from evalsuite.models.mixers.linear_attention import LinearAttention
from evalsuite.models.mixers.mamba2 import Mamba2
from evalsuite.models.mixers.metala import MetaLA
from evalsuite.models.mixers.mlstm import MLSTM
from evalsuite.models.mixers.options import option_defaults, parse_options
from evalsuite.models.mixers.rebased import ReBased
from evalsuite.models.mixers.retnet import RetNet
from evalsuite.models.mixers.softmax import (
    SlidingWindowMixer,
    SoftmaxMixer,
    to_sliding_window_mixer,
    to_softmax_mixer,
)
from evalsuite.models.mixers.weight_decay import no_weight_decay

MIXERS: dict[str, type[RecurrentMixer] | type[SoftmaxMixer]] = {
    kind.name: kind
    for kind in (
        SoftmaxMixer,
        SlidingWindowMixer,
        LinearAttention,
        RetNet,
        GLA,
        MLSTM,
        DeltaNet,
        GatedDeltaNet,
        KDA,
        HGRN2,
        Mamba2,
        MetaLA,
        ReBased,
        Hedgehog,
    )
}


def mixer_class(name: str, where: str) -> type[RecurrentMixer] | type[SoftmaxMixer]:
    """Look up a mixer by name. Raises ConfigError with the nearest known name if it is unknown."""
    if name not in MIXERS:
        raise ConfigError(f"{where}: unknown mixer '{name}'{nearest(name, MIXERS)}")
    return MIXERS[name]


def make_mixer(
    name: str,
    attention: nn.Module,
    options: dict[str, Any],
    *,
    layer: int,
    norm_eps: float,
    window: int | None,
) -> nn.Module:
    """Make the mixer that replaces `attention`, a module of the teacher's architecture.

    Args:
        name: the mixer.
        attention: the teacher's attention module; softmax mixers convert it in place.
        options: the recipe's options for this mixer.
        layer: layer index, for the cache and for messages.
        norm_eps: epsilon of the teacher's norms.
        window: the teacher's own sliding window in this layer, if any.

    Raises:
        ConfigError: unknown mixer or option, or an attention module that no mixer can replace.
    """
    where = f"layer {layer}, {name}"
    kind = mixer_class(name, where)
    shape = AttentionShape.from_attention(attention, norm_eps, layer)
    parsed: Any = parse_options(kind.Options, options, where)
    if issubclass(kind, RecurrentMixer):
        return kind(shape, parsed, layer)
    if kind is SlidingWindowMixer:
        return to_sliding_window_mixer(attention, parsed, window)
    return to_softmax_mixer(attention, window)


__all__ = [
    "MIXERS",
    "AttentionShape",
    "LayerCache",
    "Mixer",
    "MixerState",
    "RecurrenceInputs",
    "SlidingWindowMixer",
    "SoftmaxMixer",
    "link_lower_bounds",
    "make_mixer",
    "mixer_class",
    "no_weight_decay",
    "option_defaults",
    "parse_options",
    "repeat_kv_weights",
]

"""The token mixers, by the names that recipes and pages use."""

from typing import Any

from torch import nn

from evalsuite.foundation import ConfigError, nearest
from evalsuite.models.mixers.base import Mixer, Slot, State, Terms
from evalsuite.models.mixers.deltanet import DeltaNet
from evalsuite.models.mixers.gated_deltanet import GatedDeltaNet
from evalsuite.models.mixers.geometry import Geometry, expand_heads, geometry_of
from evalsuite.models.mixers.gla import GLA
from evalsuite.models.mixers.hedgehog import Hedgehog
from evalsuite.models.mixers.hgrn2 import HGRN2
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
    sliding_window_over,
    softmax_over,
)

MIXERS: dict[str, type[Mixer] | type[SoftmaxMixer]] = {
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


def mixer_class(name: str, where: str) -> type[Mixer] | type[SoftmaxMixer]:
    """Look a mixer up. Raises ConfigError, naming the nearest known one, if there is none of that name."""
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
    """Make the mixer that stands where `attention`, a module of the teacher's architecture, stands.

    Args:
        options: what the recipe says about this mixer.
        layer: the layer's number, for the cache and for messages.
        norm_eps: of the teacher's norms.
        window: the teacher's own sliding window in this layer, if it has one.

    Raises:
        ConfigError: unknown mixer or option, or an attention module that no mixer can replace.
    """
    where = f"layer {layer}, {name}"
    kind = mixer_class(name, where)
    geometry = geometry_of(attention, norm_eps, layer)
    parsed: Any = parse_options(kind.Options, options, where)
    if issubclass(kind, Mixer):
        return kind(geometry, parsed, layer)
    if kind is SlidingWindowMixer:
        return sliding_window_over(attention, parsed, window)
    return softmax_over(attention, window)


__all__ = [
    "MIXERS",
    "Geometry",
    "Mixer",
    "SlidingWindowMixer",
    "Slot",
    "SoftmaxMixer",
    "State",
    "Terms",
    "expand_heads",
    "geometry_of",
    "make_mixer",
    "mixer_class",
    "option_defaults",
    "parse_options",
]

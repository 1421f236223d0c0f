"""The student on the meta device, from which the served model reads each layer's shape and options."""

import copy
from collections import Counter
from typing import Any

import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.decoder import StudentConfig, StudentModel
from evalsuite.models.mixers import RecurrentMixer, SoftmaxMixer
from evalsuite.models.vllm_plugin.sharding import local_mixer
from evalsuite.models.vllm_plugin.state import state_bytes

_SERVED: dict[str, tuple[type, tuple[str, ...]]] = {
    "recurrence": (
        RecurrentMixer,
        (
            "forward",
            "prepare",
            "project_output",
            "apply_normalizer",
            "state_shapes",
            "cache_spec",
            "position_embeddings",
        ),
    ),
    "attention": (SoftmaxMixer, ("forward", "cache_spec", "position_embeddings")),
}
"""How vLLM serves a layer → the base class, and its methods on which serving relies. A mixer that overrides
one may compute something else, or need other states."""

MAX_SHARED_PAGE_BYTES = 4 << 20
"""A block of attention has as many bytes as a page, and on a GPU vLLM starts only if it has one for each
concurrent sequence. Larger states are those of models whose kernels take longer than the scheduler."""


def build_meta_mixers(config: StudentConfig) -> list[Any]:
    """Build the mixer of each layer on the meta device.

    Raises:
        ConfigError: a mixer that vLLM cannot serve, or that does more than the shared recurrence, so that its
            state may not fit the pages.
    """
    # Building a model sets the config's attention implementation, and vLLM reads the config later.
    with torch.device("meta"):
        layers = [layer.self_attn for layer in StudentModel(copy.deepcopy(config)).layers]
    for layer, mixer in enumerate(layers):
        if mixer.spans_layers:
            raise ConfigError(
                f"layer {layer}: {mixer.name} with learned_lower_bounds = True shares parameters between "
                "layers and cannot be served by vLLM; use --engine torch"
            )
        if mixer.softmax_heads:
            raise ConfigError(
                f"layer {layer}: softmax_heads = {list(mixer.softmax_heads)} in a layer of {mixer.name} "
                "cannot be served by vLLM; use --engine torch"
            )
        if mixer.served_as is None:
            raise ConfigError(
                f"layer {layer}: the mixer {mixer.name} cannot be served by vLLM; use --engine torch"
            )
        base, methods = _SERVED[mixer.served_as]
        overridden = [m for m in methods if getattr(type(mixer), m, None) is not getattr(base, m)]
        unknown = sorted(mixer.cache_spec().states.keys() - {"recurrent", "convolution"})
        if overridden or unknown:
            raise ConfigError(
                f"layer {layer}: the mixer {mixer.name} cannot be served by vLLM (it has its own "
                f"{', '.join(overridden + unknown)}); use --engine torch"
            )
    return layers


def share_pages(layers: list[Any], state_bytes: int, *, prefix_caching: bool) -> dict[int, tuple[int, int]]:
    """Which page has the state of each recurrent layer, and at which place: {layer: (page, place)}.

    For every sequence of a step vLLM's scheduler walks through groups of equally many layers, as many as the
    rarest kind has (softmax layers of one window). With a small model that takes longer than the kernels, so
    pages hold the states of several layers, and all recurrent layers are one group if `MAX_SHARED_PAGE_BYTES`
    allows it. With prefix caching each layer has its own: prefixes are cached in whole blocks of attention,
    which are as large as a page.
    """
    recurrent = [index for index, mixer in enumerate(layers) if mixer.served_as == "recurrence"]
    windows = Counter(mixer.span.window for mixer in layers if mixer.served_as == "attention")
    pages = len(recurrent)
    if recurrent and windows and not prefix_caching:
        group = min(windows.values())
        room = max(1, MAX_SHARED_PAGE_BYTES // state_bytes)
        pages = min(pages, group * -(-pages // (group * room)))
    places: dict[int, tuple[int, int]] = {}
    held: Counter[int] = Counter()
    for number, index in enumerate(recurrent):
        page = number * pages // len(recurrent)
        places[index] = page, held[page]
        held[page] += 1
    return places


def states_per_page(places: dict[int, tuple[int, int]]) -> int:
    """The number of states for which a page has room; 0 without recurrent layers."""
    return max((place + 1 for _, place in places.values()), default=0)


def max_state_bytes(layers: list[Any], tp_size: int, dtype: torch.dtype) -> int:
    """Bytes of the largest state of one rank per layer and sequence; 0 without recurrent layers."""
    with torch.device("meta"):
        mixers = [local_mixer(mixer, tp_size) for mixer in layers if mixer.served_as == "recurrence"]
    return max((state_bytes(mixer, dtype) for mixer in mixers), default=0)

"""What the layers of any architecture keep of a text, measured on its own code without weights or data.

A forward pass on the meta device computes shapes alone. What grows with the text are keys and values, what
does not is a state; no list of families is needed, and a new one is described as it is.
"""

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from evalsuite.models.mixers import AttentionSpan, CacheSpec

LENGTHS = (2, 3)
"""Tokens of the two passes: shorter than any window, and quick where code loops over tokens."""
CACHES = ("past_key_values", "cache_params", "past_key_value", "cache", "state", "layer_past")
"""What layers and models of transformers call their cache."""


@dataclass(frozen=True, slots=True)
class MeasuredLayer:
    """One layer of an architecture."""

    mixer: str
    """Class of what reads the cache, `A + B` if two do; empty if it is not found, or nothing does."""
    cache: CacheSpec


def measure_layers(model: PreTrainedModel) -> list[MeasuredLayer]:
    """Return the layers of a model on the meta device, or one for all if its cache has no layers.

    Args:
        model: in bfloat16, in which a state that its code keeps in float32 shows.

    Raises:
        Exception: of any kind: its forward pass needs more than shapes, or returns no cache.
    """
    with _no_warnings(), torch.inference_mode():
        short, long = (_cached_layers(model, length) for length in LENGTHS)
    mixers = _mixers(model)
    if len(mixers) != len(short):
        mixers = [""] * len(short)
    return [
        MeasuredLayer(mixer, _spec(first, second))
        for mixer, first, second in zip(mixers, short, long, strict=True)
    ]


def _cached_layers(model: PreTrainedModel, length: int) -> list[Any]:
    """The cache of each layer after `length` tokens; all of it as one if it is not by layer."""
    output = model(input_ids=torch.zeros(1, length, dtype=torch.long, device=model.device), use_cache=True)
    cache = next((output[name] for name in CACHES if output.get(name) is not None), None)
    if cache is None:
        raise ValueError("its forward pass returns no cache")
    layers = getattr(cache, "layers", None)
    return list(layers) if layers else [cache]


def _spec(short: Any, long: Any) -> CacheSpec:
    """What a layer keeps: by tensor, in numbers."""
    grows, states = 0, {"recurrent": 0, "other": 0}
    for first, second in zip(_tensors(short), _tensors(long), strict=True):
        per_token, rest = divmod(second.numel() - first.numel(), LENGTHS[1] - LENGTHS[0])
        if rest or per_token < 0:
            raise ValueError(f"a cached tensor has shape {tuple(first.shape)}, then {tuple(second.shape)}")
        if per_token:
            grows += per_token
        elif first.dtype.is_floating_point:
            states["recurrent" if first.dtype.itemsize > 2 else "other"] += first.numel()
    window = getattr(short, "sliding_window", None)
    return CacheSpec(
        states={name: (size,) for name, size in states.items() if size},
        kv_width=grows,
        span=AttentionSpan(window if isinstance(window, int) else None) if grows else None,
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors that something holds, each once, in a fixed order."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        elif hasattr(each, "__dict__") and not isinstance(each, type | torch.dtype | torch.device):
            waiting += vars(each).values()


def _mixers(model: PreTrainedModel) -> list[str]:
    """Classes of what reads the cache in each layer, from the first list of as many modules as layers."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return [" + ".join(_readers(layer)) for layer in module]
    return []


def _readers(layer: nn.Module) -> list[str]:
    return [
        type(child).__name__
        for child in layer.children()
        if any(name in inspect.signature(child.forward).parameters for name in CACHES)
    ]


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Silence what transformers says of kernels that it lacks: none runs here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import PreTrainedModel

from evalsuite.models.decoder.cache import CACHES, cached_tensors, returned_cache
from evalsuite.models.mixers import AttentionSpan, CacheSpec

LENGTHS = (2, 3)
"""Tokens of the two passes: shorter than any window, and quick where code loops over tokens."""
ARGUMENTS = {*CACHES, "cache", "past_key_value", "layer_past"}
"""What layers of transformers call the cache that they read."""


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


def weights_in_products(model: PreTrainedModel) -> dict[str, int]:
    """Weights of each parameter that is a factor of matrix products or convolutions, once per product.

    What its module does with a parameter decides, not its name or shape: embeddings that are looked up and
    decay rates of a recurrence are in no product, and shared weights are in several.

    Args:
        model: on the meta device.

    Raises:
        Exception: as `measure_layers`.
    """
    with _no_warnings(), torch.no_grad(), _Products(model) as products:
        _forward(model, LENGTHS[0])
    return products.weights


class _Products(TorchDispatchMode):
    """Counts the weights that matrix products and convolutions read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights: dict[str, int] = {}
        # Views share the storage. A weak reference holds its address, which a later tensor would get else.
        self.names = {StorageWeakRef(each.untyped_storage()): name for name, each in model.named_parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output, kind = func(*args, **(kwargs or {})), func.overloadpacket
        if kind is torch.ops.aten._to_copy and (name := self._name(args[0])):
            self.names[StorageWeakRef(output.untyped_storage())] = name
        elif kind in flop_registry or "grouped_mm" in func.name():
            first = int(kind in _ADDING)
            for factor in args[first : first + 2]:
                if name := self._name(factor):
                    self.weights[name] = self.weights.get(name, 0) + factor.numel()
        return output

    def _name(self, tensor: torch.Tensor) -> str | None:
        return self.names.get(StorageWeakRef(tensor.untyped_storage()))


_ADDING = (torch.ops.aten.addmm, torch.ops.aten.baddbmm)
"""Products whose first argument is added to them."""


def _cached_layers(model: PreTrainedModel, length: int) -> list[Any]:
    """The cache of each layer after `length` tokens; all of it as one if it is not by layer."""
    output = _forward(model, length)
    if not (found := returned_cache(output)):
        raise ValueError("its forward pass returns no cache")
    (cache,) = found.values()
    return list(getattr(cache, "layers", None) or [cache])


def _forward(model: PreTrainedModel, length: int) -> Any:
    return model(input_ids=torch.zeros(1, length, dtype=torch.long, device=model.device), use_cache=True)


def _spec(short: Any, long: Any) -> CacheSpec:
    """What a layer keeps: by tensor, in numbers."""
    grows, states = 0, {"recurrent": 0, "other": 0}
    for first, second in zip(cached_tensors(short), cached_tensors(long), strict=True):
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
        if not ARGUMENTS.isdisjoint(inspect.signature(child.forward).parameters)
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

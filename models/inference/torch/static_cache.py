"""Preallocated cache of the sequences that decode together, one slot each.

A slot's keys start at its front; new ones are written at the slot's own position, and anything behind is
never read. Prompts of any length therefore decode together without padding, and a finished sequence's slot is
reused. Addresses are fixed, as CUDA graphs require.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evalsuite.models.inference.batching import to_device
from evalsuite.models.inference.torch.kv_cache import KVCache, LayerState
from evalsuite.models.ops.recurrence import StateAccess


class StaticKVCache:
    """Storage for `num_slots` sequences of at most `capacity` tokens; `sample` gives shapes and dtypes."""

    def __init__(self, sample: KVCache, num_slots: int, capacity: int) -> None:
        self.num_slots = num_slots
        self.capacity = capacity
        self.layers = [_allocate(layer, num_slots, capacity) for layer in sample.layers]
        device = sample.lengths.device
        self.slot_indices = torch.arange(num_slots, device=device)
        self.columns = torch.arange(capacity, device=device)
        self.all_valid = torch.ones(capacity, dtype=torch.bool, device=device)

    def write(self, slots: Sequence[int], cache: KVCache) -> None:
        """Copy row i of `cache` into slot `slots[i]`."""
        target = to_device(np.array(slots), self.slot_indices.device)
        for mine, new in zip(self.layers, cache.layers, strict=True):
            if mine.keys is not None and mine.values is not None:
                assert new.keys is not None
                assert new.values is not None
                length = min(new.keys.shape[2], self.capacity)
                mine.keys[target, :, :length] = new.keys[:, :, :length]
                mine.values[target, :, :length] = new.values[:, :, :length]
            for name, stored in mine.recurrent.items():
                stored[target] = new.recurrent[name].to(stored.dtype)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots `sources` over slots `targets`; the two must be disjoint."""
        source = to_device(np.array(sources), self.slot_indices.device)
        target = to_device(np.array(targets), self.slot_indices.device)
        for layer in self.layers:
            for tensor in layer.tensors():
                tensor[target] = tensor[source]


def _allocate(layer: LayerState, num_slots: int, capacity: int) -> LayerState:
    empty = LayerState()
    if layer.keys is not None and layer.values is not None:
        heads, width = layer.keys.shape[1], layer.keys.shape[3]
        empty.keys = layer.keys.new_zeros(num_slots, heads, capacity, width)
        empty.values = layer.values.new_zeros(num_slots, heads, capacity, layer.values.shape[3])
    empty.recurrent = {
        name: state.new_zeros(num_slots, *state.shape[1:]) for name, state in layer.recurrent.items()
    }
    return empty


class StaticCacheView:
    """The interface of the static cache to the decoder in one step (see `BranchingCache`)."""

    def __init__(self, cache: StaticKVCache, num_seqs: int, length: int, positions: Tensor) -> None:
        self.layers = [_StaticLayer(layer, num_seqs) for layer in cache.layers]
        self._slot_indices = cache.slot_indices[:num_seqs]
        self._positions = positions
        self._num_seqs = num_seqs
        self._length = length

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one key and value [R, Hkv, 1, D] per row at its position; return all up to `length`."""
        layer = self.layers[layer_idx].state
        # Some rows write behind `length`: those of slots that have ended.
        for slots, new in ((layer.keys, keys), (layer.values, values)):
            assert slots is not None
            slots[self._slot_indices, :, self._positions] = new[:, :, 0]
        return self.room(layer_idx)

    def room(self, layer_idx: int, *_: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [R, Hkv, L, D] of a layer up to `length`, as views into the slots."""
        layer = self.layers[layer_idx].state
        assert layer.keys is not None
        assert layer.values is not None
        seqs, length = slice(self._num_seqs), slice(self._length)
        return layer.keys[seqs, :, length], layer.values[seqs, :, length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of keys per row that a step attends to."""
        return self._length


class _StaticLayer:
    def __init__(self, state: LayerState, num_seqs: int) -> None:
        self.state = state
        self._recurrent = {name: stored[:num_seqs] for name, stored in state.recurrent.items()}

    def read(self) -> dict[str, Tensor] | None:
        return dict(self._recurrent) or None

    def lend(self, *, slots: bool) -> tuple[dict[str, Tensor] | None, StateAccess]:
        # Copying what a step of recurrent layers has written takes about as long as writing it.
        return self.read(), StateAccess(in_place=True)

    def write(self, state: dict[str, Tensor]) -> None:
        for name, new in state.items():
            if new is not self._recurrent[name]:
                self._recurrent[name].copy_(new)

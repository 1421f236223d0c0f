"""Per-row caches of a batch (keys, values, recurrent states) and branching from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evalsuite.models.inference.batching import to_device
from evalsuite.models.inference.torch.unpadding import UnpaddedLayout
from evalsuite.models.ops.recurrence import OWN, StateAccess


@dataclass(slots=True)
class LayerState:
    """Cache of one layer: softmax keys and values [R, Hkv, L, D], named recurrent states [R, …]."""

    keys: Tensor | None = None
    values: Tensor | None = None
    recurrent: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> list[Tensor]:
        """All tensors of this layer."""
        softmax = [tensor for tensor in (self.keys, self.values) if tensor is not None]
        return softmax + list(self.recurrent.values())

    def with_keys(self, change: Callable[[Tensor], Tensor]) -> "LayerState":
        """This state with other keys and values, if it has any."""
        keys, values = (None if each is None else change(each) for each in (self.keys, self.values))
        return LayerState(keys, values, self.recurrent)


@dataclass(slots=True)
class KVCache:
    """Cache of R rows after some tokens.

    Args:
        layers: one per decoder layer.
        lengths: [R], tokens read so far; the position of the next token.
        positions: [R, L], positions of the cached keys.
        valid: bool [R, L], false at keys of padding.
        in_front: whether the valid keys of each row are its first ones.
    """

    layers: list[LayerState]
    lengths: Tensor
    positions: Tensor
    valid: Tensor
    in_front: bool

    def truncate(self, lengths: Sequence[int]) -> "KVCache":
        """Broadcast a single-row cache to one row per entry of `lengths`, truncated to that many tokens.

        Keys and values only: recurrent states cannot be truncated and remain those of the full row.
        """
        longest = max(lengths)
        new_lengths = to_device(np.fromiter(lengths, np.int64), self.lengths.device)
        layers = [layer.with_keys(lambda stored: stored[:, :, :longest]) for layer in self.layers]
        positions = self.positions[:, :longest].expand(len(new_lengths), -1)
        return KVCache(layers, new_lengths, positions, positions < new_lengths[:, None], self.in_front)

    def compact(self) -> "KVCache":
        """Move the valid keys and values of each row to its front, in order."""
        order = (~self.valid).long().argsort(dim=1, stable=True)[:, : int(self.lengths.max())]
        along = order[:, None, :, None]
        layers = [layer.with_keys(lambda stored: stored.take_along_dim(along, 2)) for layer in self.layers]
        positions, valid = (each.gather(1, order) for each in (self.positions, self.valid))
        return KVCache(layers, self.lengths, positions, valid, in_front=True)


class BranchingCache:
    """The cache of one forward pass in which every row continues a row of a parent cache.

    Takes the place of a transformers `Cache`: softmax layers call `update`, recurrent layers
    `layers[i].read()` and `.write(state)`. The resulting cache is stored only with `keep`.
    """

    def __init__(
        self,
        num_layers: int,
        parent: KVCache | None,
        parent_rows: Tensor | None,
        keep: bool,
        layout: UnpaddedLayout | None = None,
    ) -> None:
        self.layers = [
            _BranchingLayer(LayerState() if parent is None else parent.layers[i], parent_rows, keep)
            for i in range(num_layers)
        ]
        self._keep, self._layout = keep, layout
        self._parent_length = 0 if parent is None else parent.valid.shape[1]

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values [R, Hkv, T, D] (un-padded [1, Hkv, N, D]) to the parents'; return all."""
        layer = self.layers[layer_idx]
        if self._layout is not None:
            keys, values = self._layout.pad_heads(keys), self._layout.pad_heads(values)
        if layer.before.keys is not None and layer.before.values is not None:
            keys = torch.cat([layer.select(layer.before.keys), keys], 2)
            values = torch.cat([layer.select(layer.before.values), values], 2)
        if self._keep:
            layer.after.keys, layer.after.values = keys, values
        return keys, values

    def room(self, layer_idx: int, key: Tensor, value: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values [R, Hkv, L, D] with the parents' in front and room for new ones behind.

        Args:
            layer_idx: the layer.
            key, value: the new ones [R · T, Hkv, D], for their shapes and dtypes.
            rows: R.
        """
        layer = self.layers[layer_idx]
        keys = layer.extended(layer.before.keys, key, rows)
        values = layer.extended(layer.before.values, value, rows)
        if self._keep:
            layer.after.keys, layer.after.values = keys, values
        return keys, values

    def room_apart(
        self, layer_idx: int, key: Tensor, value: Tensor, rows: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Room for the new keys and values [R, Hkv, T, D], and the parents', of which rows are not copied.

        For a pass that continues a parent and is not kept. Arguments as for `room`.
        """
        layer = self.layers[layer_idx]
        assert not self._keep
        assert layer.before.keys is not None
        assert layer.before.values is not None
        keys, values = (layer.extended(None, each, rows) for each in (key, value))
        return keys, values, layer.before.keys, layer.before.values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of cached keys per row before this pass, padding included."""
        return self._parent_length

    def layer_states(self) -> list[LayerState]:
        """State of each layer after the pass (only with `keep`)."""
        return [layer.after for layer in self.layers]


class _BranchingLayer:
    def __init__(self, before: LayerState, parent_rows: Tensor | None, keep: bool) -> None:
        self.before, self.after = before, LayerState()
        self.parent_rows = parent_rows
        self.keep = keep

    def extended(self, before: Tensor | None, new: Tensor, rows: int) -> Tensor:
        known = 0 if before is None else before.shape[2]
        extended = new.new_empty(rows, new.shape[1], known + len(new) // rows, new.shape[2])
        if before is not None:
            extended[:, :, :known] = self.select(before)
        return extended

    def read(self) -> dict[str, Tensor] | None:
        return {name: self.select(state) for name, state in self.before.recurrent.items()} or None

    def lend(self, *, slots: bool) -> tuple[dict[str, Tensor] | None, StateAccess]:
        if self.keep:
            return self.read(), OWN
        if not slots or not self.before.recurrent:
            return self.read(), StateAccess(discards=True)
        # Rows that are not kept read their parents' states where they are.
        return self.before.recurrent, StateAccess(slots=self.parent_rows, discards=True)

    def write(self, state: dict[str, Tensor]) -> None:
        if self.keep:
            self.after.recurrent = state

    def select(self, tensor: Tensor) -> Tensor:
        assert self.parent_rows is not None
        if tensor.shape[0] == 1:
            return tensor.expand(self.parent_rows.shape[0], *tensor.shape[1:])
        return tensor.index_select(0, self.parent_rows)

"""Static storage for rows that decode together: a row of keys, values and states per slot.

Rows have lengths of their own: a slot's keys lie at its front, new ones are written at the slot's own
position, and what lies behind is never read. So prompts of any length decode together without padding,
and a finished row's slot can be given to the next prompt. The addresses never change (CUDA graphs).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.engine.states import LayerState, State


class Slots:
    """Storage for `rows` rows of at most `capacity` tokens, shaped as `sample` (a state of any rows)."""

    def __init__(self, sample: State, rows: int, capacity: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.layers = [_empty(layer, rows, capacity) for layer in sample.layers]
        device = sample.lengths.device
        self.row_numbers = torch.arange(rows, device=device)
        self.columns = torch.arange(capacity, device=device)
        self.every = torch.ones(capacity, dtype=torch.bool, device=device)

    def load(self, slots: Sequence[int], state: State) -> None:
        """Put row i of `state` into slot `slots[i]`."""
        into = torch.tensor(slots, device=self.row_numbers.device)
        for mine, theirs in zip(self.layers, state.layers, strict=True):
            if mine.keys is not None and mine.values is not None:
                assert theirs.keys is not None
                assert theirs.values is not None
                length = min(theirs.keys.shape[2], self.capacity)
                mine.keys[into, :, :length] = theirs.keys[:, :, :length]
                mine.values[into, :, :length] = theirs.values[:, :, :length]
            for name, stored in mine.recurrent.items():
                stored[into] = theirs.recurrent[name].to(stored.dtype)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots `sources` over slots `targets`; the two are disjoint."""
        source = torch.tensor(sources, device=self.row_numbers.device)
        target = torch.tensor(targets, device=self.row_numbers.device)
        for layer in self.layers:
            for tensor in layer.tensors():
                tensor[target] = tensor[source]

    def view(self, rows: int, length: int, positions: Tensor) -> "SlotCache":
        """The cache of one decode step of slots 0 … rows − 1 whose next positions are below `length`."""
        return SlotCache(self, rows, length, positions)


def _empty(layer: LayerState, rows: int, capacity: int) -> LayerState:
    empty = LayerState()
    if layer.keys is not None and layer.values is not None:
        heads, width = layer.keys.shape[1], layer.keys.shape[3]
        empty.keys = layer.keys.new_zeros(rows, heads, capacity, width)
        empty.values = layer.values.new_zeros(rows, heads, capacity, layer.values.shape[3])
    empty.recurrent = {
        name: state.new_zeros(rows, *state.shape[1:]) for name, state in layer.recurrent.items()
    }
    return empty


class SlotCache:
    """What the decoder sees of the slots in one step (see `ForkedCache` for the protocol)."""

    def __init__(self, slots: Slots, rows: int, length: int, positions: Tensor) -> None:
        self.layers = [_SlotLayer(layer, rows) for layer in slots.layers]
        self._row_numbers = slots.row_numbers[:rows]
        self._positions = positions
        self._rows = rows
        self._length = length

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one new key and value [R, Hkv, 1, D] per row at its position; return all up to `length`."""
        layer = self.layers[layer_idx].state
        assert layer.keys is not None
        assert layer.values is not None
        layer.keys[self._row_numbers, :, self._positions] = keys[:, :, 0]
        layer.values[self._row_numbers, :, self._positions] = values[:, :, 0]
        return layer.keys[: self._rows, :, : self._length], layer.values[: self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of keys per row that a step looks at."""
        return self._length


class _SlotLayer:
    def __init__(self, state: LayerState, rows: int) -> None:
        self.state = state
        self.rows = rows

    def read(self) -> dict[str, Tensor] | None:
        return {name: stored[: self.rows] for name, stored in self.state.recurrent.items()} or None

    def write(self, state: dict[str, Tensor]) -> None:
        for name, new in state.items():
            self.state.recurrent[name][: self.rows].copy_(new)

"""What rows remember after reading some tokens, and how it is forked for several continuations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evalsuite.models.engine.packing import Packing


@dataclass(slots=True)
class LayerState:
    """Memory of one layer: keys and values [R, Hkv, L, D] of softmax, named states [R, …] of a recurrence."""

    keys: Tensor | None = None
    values: Tensor | None = None
    recurrent: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> list[Tensor]:
        """All tensors of this layer."""
        softmax = [tensor for tensor in (self.keys, self.values) if tensor is not None]
        return softmax + list(self.recurrent.values())


@dataclass(slots=True)
class State:
    """Memory of R rows.

    Args:
        layers: one per decoder layer.
        lengths: [R], tokens read so far; the position of the next token.
        positions: [R, L], positions of the stored keys.
        real: bool [R, L], which stored keys belong to the row and not to padding.
    """

    layers: list[LayerState]
    lengths: Tensor
    positions: Tensor
    real: Tensor

    def cut(self, lengths: Sequence[int]) -> "State":
        """This one row, once for every length: what it was after reading that many tokens.

        Only keys and values can be cut; the states of a recurrence are those of the whole row.
        """
        most = max(lengths)
        kept = torch.tensor(list(lengths), device=self.lengths.device)
        layers = [
            LayerState(
                None if layer.keys is None else layer.keys[:, :, :most],
                None if layer.values is None else layer.values[:, :, :most],
                layer.recurrent,
            )
            for layer in self.layers
        ]
        positions = self.positions[:, :most].expand(len(kept), -1)
        return State(layers, kept, positions, positions < kept[:, None])

    def closed(self) -> "State":
        """The same with the tokens of each row at its front, in order, and what is not real behind."""
        order = (~self.real).long().argsort(dim=1, stable=True)[:, : int(self.lengths.max())]
        along = order[:, None, :, None]
        layers = [
            LayerState(
                None if layer.keys is None else layer.keys.take_along_dim(along, 2),
                None if layer.values is None else layer.values.take_along_dim(along, 2),
                layer.recurrent,
            )
            for layer in self.layers
        ]
        return State(layers, self.lengths, self.positions.gather(1, order), self.real.gather(1, order))


class ForkedCache:
    """The cache of one forward pass: every row starts from the state of its parent row.

    It stands where transformers expects a `Cache`; softmax layers call `update`, recurrent layers
    `layers[i].read()` and `.write(state)`. What the rows remember afterwards is kept only if asked for.
    """

    def __init__(
        self,
        depth: int,
        parent: State | None,
        parents: Tensor | None,
        keep: bool,
        packed: Packing | None = None,
    ) -> None:
        self.layers = [
            _ForkedLayer(parent.layers[i] if parent is not None else None, parents, keep, packed)
            for i in range(depth)
        ]
        self._seen = 0 if parent is None else parent.real.shape[1]

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new keys and values [R, Hkv, T, D] (packed [1, Hkv, N, D]) to the parents'; return all."""
        return self.layers[layer_idx].append(keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of stored keys per row, padding included."""
        return self._seen

    def states(self) -> list[LayerState]:
        """What the rows remember now (only with `keep`)."""
        return [layer.after for layer in self.layers]


class _ForkedLayer:
    def __init__(
        self, before: LayerState | None, parents: Tensor | None, keep: bool, packed: Packing | None
    ) -> None:
        self.before = before
        self.parents = parents
        self.keep = keep
        self.packed = packed
        self.after = LayerState()

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.packed is not None:
            keys, values = self.packed.heads(keys), self.packed.heads(values)
        if self.before is not None and self.before.keys is not None and self.before.values is not None:
            keys = torch.cat([self._fork(self.before.keys), keys], 2)
            values = torch.cat([self._fork(self.before.values), values], 2)
        if self.keep:
            self.after.keys, self.after.values = keys, values
        return keys, values

    def read(self) -> dict[str, Tensor] | None:
        if self.before is None or not self.before.recurrent:
            return None
        return {name: self._fork(state) for name, state in self.before.recurrent.items()}

    def write(self, state: dict[str, Tensor]) -> None:
        if self.keep:
            self.after.recurrent = state

    def _fork(self, tensor: Tensor) -> Tensor:
        assert self.parents is not None
        if tensor.shape[0] == 1:
            return tensor.expand(self.parents.shape[0], *tensor.shape[1:])
        return tensor.index_select(0, self.parents)


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids [R, T] padded with 0 on the right, and lengths [R]; no row may be empty."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    tokens = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return on_device(tokens, device), on_device(lengths, device)


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device; a GPU is not waited for, which a copy from ordinary memory would do."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

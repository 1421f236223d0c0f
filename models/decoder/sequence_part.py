"""The part of a sequence that one process has, to a layer: tokens that continue from a cache.

What the earlier parts left takes the place of cached states, keys and values, so that every layer that can
continue from a cache runs unchanged, and gradients flow through it.
"""

from math import prod

import torch
from torch import Tensor

from evalsuite.models.mixers import AttentionSpan, CacheSpec, MixerState
from evalsuite.models.mixers.softmax import additive_mask
from evalsuite.models.ops.recurrence import OWN, StateAccess
from evalsuite.models.sequence_parallel import SequenceParallel


class EarlierParts:
    """The cache of one layer in one pass, with the interface of `LayerCache`.

    Args:
        parallel: which part the process has.
        layer: number of the layer.
        spec: what the layer caches.
        x: its input [B, T, D].
    """

    def __init__(self, parallel: SequenceParallel, layer: int, spec: CacheSpec, x: Tensor) -> None:
        self._parallel, self._layer, self._spec, self._x = parallel, layer, spec, x
        self._state: MixerState | None = None

    @property
    def layers(self) -> dict[int, "EarlierParts"]:
        """This cache by the layer's number; not stored, as a circle of references would hold activations."""
        return {self._layer: self}

    def read(self) -> MixerState | None:
        """The state after the earlier parts, or None in the first one."""
        if self._parallel.rank == 0:
            return None
        rows, shapes = len(self._x), self._spec.states
        sizes = [rows * prod(shape) for shape in shapes.values()]
        message = self._parallel.receive(sum(sizes), self._x.new_empty(0, dtype=self._dtype))
        parts = zip(shapes.items(), message.split(sizes), strict=True)
        dtypes = {"recurrent": self._dtype, "length": torch.int32}
        return {
            name: part.view(rows, *shape).to(dtypes.get(name, self._x.dtype)) for (name, shape), part in parts
        }

    def lend(self, *, slots: bool) -> tuple[MixerState | None, StateAccess]:
        return self.read(), OWN

    def write(self, state: MixerState) -> None:
        """Store the state after this part, which `hand_over` sends."""
        self._state = state

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, T, D] of this part after those of all earlier ones."""
        widths = [k.shape[-1], v.shape[-1]]
        parts = self._parallel.gather(torch.cat([k, v], -1))[: self._parallel.rank + 1]
        keys, values = torch.cat(parts.unbind(), -2).split(widths, -1)
        return keys, values

    def hand_over(self, output: Tensor) -> Tensor:
        """Send the layer's state to the process of the next part; return the layer's `output`."""
        if not self._spec.states or self._parallel.is_last:
            return output
        assert self._state is not None
        message = torch.cat([self._state[name].to(self._dtype).flatten() for name in self._spec.states])
        return self._parallel.hand_over(message, output)

    @property
    def _dtype(self) -> torch.dtype:
        """That of messages, in which states of all dtypes are exact."""
        return torch.promote_types(self._x.dtype, torch.float32)


def part_mask(parallel: SequenceParallel, embeddings: Tensor, span: AttentionSpan) -> Tensor:
    """Causal mask of a part [1, 1, T, (rank + 1) · T], in the form that layers add to their scores: attention
    makes a copy of boolean ones in this form for every layer, which the backward pass needs.

    Args:
        embeddings: [B, T, D].
        span: tokens that a query attends to.
    """
    length = embeddings.shape[1]
    keys = torch.arange((parallel.rank + 1) * length, device=embeddings.device)
    return additive_mask(span.visible(keys[-length:, None], keys)[None, None], embeddings.dtype)

"""How a recurrent layer's state lies in a page of vLLM: flat, what is float32 first.

vLLM keeps one page per layer and sequence and copies whole pages for its prefix cache. Were every kind of
mixer to declare states of its own, two kinds in one student would disagree on what a page is; so all layers
declare the same number of bytes, and each cuts its own views.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from evalsuite.models.mixers import Mixer, State

ALIGNMENT = 16
"""Pages are multiples of this, so that copies move whole words and float32 views are possible."""

_ORDER = ("recurrent", "convolution")
"""Float32 first: behind an odd number of 16-bit elements it could not be viewed."""


def state_dtypes(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtype of each state of a model that computes in `dtype`."""
    return {"recurrent": torch.float32, "convolution": dtype}


def state_bytes(mixer: Mixer, dtype: torch.dtype) -> int:
    """Bytes of one sequence's state in one layer, rounded up to `ALIGNMENT`."""
    kinds, shapes = state_dtypes(dtype), mixer.state_shapes()
    total = sum(prod(shape) * kinds[name].itemsize for name, shape in shapes.items())
    return -(-total // ALIGNMENT) * ALIGNMENT


def state_views(pages: Tensor, mixer: Mixer, dtype: torch.dtype) -> State:
    """Cut pages [slots, bytes] of int8 into states by name, [slots, …]; they share memory."""
    kinds, shapes = state_dtypes(dtype), mixer.state_shapes()
    views: State = {}
    start = 0
    for name in _ORDER:
        if name in shapes:
            size = prod(shapes[name]) * kinds[name].itemsize
            flat = pages[:, start : start + size].view(kinds[name])
            views[name] = flat.view(-1, *shapes[name])
            start += size
    return views


@dataclass(frozen=True, slots=True)
class PagedSlot:
    """The states of one batch in one layer, behind the interface that a mixer reads and writes them by."""

    views: State
    rows: Tensor
    """Slot of each sequence, int64 [N]."""
    started: Tensor | None = None
    """Which sequences have a state already, bool [N]; None: all. vLLM does not clear slots."""

    def read(self) -> State:
        """The states of the batch, zero for sequences that only start."""
        found = {name: view[self.rows] for name, view in self.views.items()}
        if self.started is None:
            return found
        # Not a product: what an earlier owner left may be infinite.
        return {
            name: x.where(self.started.view(-1, *[1] * (x.dim() - 1)), x.new_zeros(()))
            for name, x in found.items()
        }

    def write(self, state: State) -> None:
        """Put the states back into their slots."""
        for name, view in self.views.items():
            view[self.rows] = state[name].to(view.dtype)

"""Layout of a recurrent layer's state in a vLLM page: flat, float32 first.

vLLM allocates one page per layer and sequence and copies whole pages for its prefix cache. If each kind of
mixer declared its own states, two kinds in one student would disagree on the page layout; so all layers
declare the same number of bytes, and each layer views its own part.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from evalsuite.models.mixers import MixerState, RecurrentMixer
from evalsuite.models.ops.recurrence import OWN, StateAccess

PAGE_ALIGNMENT = 16
"""Page sizes are multiples of this, so that copies move full words and float32 views are possible."""


def state_bytes(mixer: RecurrentMixer, dtype: torch.dtype) -> int:
    """Bytes of one sequence's state in one layer, rounded up to `PAGE_ALIGNMENT`."""
    return -(-mixer.cache_spec().state_bytes(dtype) // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def state_views(pages: Tensor, mixer: RecurrentMixer, dtype: torch.dtype) -> MixerState:
    """View pages [slots, bytes] of int8 as states by name, [slots, …], without copying."""
    shapes = mixer.state_shapes()
    views: MixerState = {}
    start = 0
    # Float32 first: after an odd number of 16-bit elements it could not be viewed.
    for name, kind in (("recurrent", torch.float32), ("convolution", dtype)):
        if name in shapes:
            size = prod(shapes[name]) * kind.itemsize
            views[name] = pages[:, start : start + size].view(kind).view(-1, *shapes[name])
            start += size
    return views


@dataclass(frozen=True, slots=True)
class PagedLayerCache:
    """States of one batch in one layer, with the interface of a mixer's `LayerCache`."""

    views: MixerState
    state_indices: Tensor
    """Slot of each sequence, int64 [N]."""
    has_initial_state: Tensor | None = None
    """Sequences that already have a state, bool [N]; None: all, each of which reads one token. vLLM does not
    clear slots."""

    def read(self) -> MixerState:
        """Return copies of the states of the batch, with zeros for new sequences."""
        states = {name: view[self.state_indices] for name, view in self.views.items()}
        has_state = self.has_initial_state
        if has_state is None:
            return states
        # `where` instead of a product: the previous owner may have left infinities.
        return {
            name: x.where(has_state.view(-1, *[1] * (x.dim() - 1)), x.new_zeros(()))
            for name, x in states.items()
        }

    def lend(self, *, slots: bool) -> tuple[MixerState, StateAccess]:
        """Lends the states of decoding sequences where they are."""
        if slots and self.has_initial_state is None:
            return self.views, StateAccess(slots=self.state_indices)
        return self.read(), OWN

    def write(self, state: MixerState) -> None:
        """Write copies of states back into their slots."""
        for name, view in self.views.items():
            if state[name] is not view:
                view[self.state_indices] = state[name].to(view.dtype)

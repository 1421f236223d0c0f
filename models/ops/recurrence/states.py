"""Where the states of a call lie, and what becomes of them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateAccess:
    """How a call may use the states that it is given.

    A step of generation reads and writes little else than states, so that copies of them double its time.
    """

    slots: Tensor | None = None
    """Index of each row's state among those given, int64 [B], each over which the new one is written. None:
    state i is that of row i."""
    in_place: bool = False
    """Whether new states may be written over the given ones, which are then returned."""
    discards: bool = False
    """Whether new states are not wanted: none are written, and what is returned for them is arbitrary."""


OWN = StateAccess()
"""States of their own: one for each row, and new tensors for new ones."""

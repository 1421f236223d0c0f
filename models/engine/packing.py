"""Ragged rows without padding where it costs most: projections and MLPs see only real tokens, in one row.

A CPU's time is nearly all in those products, and they do not care which row a token is of. Attention does:
there the rows are spread out again, padded on the right.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

WORTH = 1.02
"""Padded over real tokens from which packing is worth the copies around attention."""


class Packing:
    """Rows of different lengths, laid one behind another.

    Args:
        lengths: tokens of each row, at least 1.
        device: where the tensors to pack are.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.rows, self.longest = len(lengths), max(lengths)
        real = np.arange(self.longest) < np.asarray(lengths)[:, None]
        self._place = torch.from_numpy(np.flatnonzero(real)).to(device)
        self._pads = torch.from_numpy(np.flatnonzero(~real)).to(device)

    def pack(self, x: Tensor) -> Tensor:
        """[R, T, …] → [1, N, …], the N real tokens."""
        return x.flatten(0, 1).index_select(0, self._place).unsqueeze(0)

    def unpack(self, x: Tensor) -> Tensor:
        """[1, N, …] → [R, T, …] with zeros at the pads."""
        spread = x.new_empty(self.rows * self.longest, *x.shape[2:])
        # Nothing looks at pads, but what is not finite there would come through a weight of zero.
        spread.index_copy_(0, self._place, x[0]).index_fill_(0, self._pads, 0)
        return spread.unflatten(0, (self.rows, self.longest))

    def heads(self, x: Tensor) -> Tensor:
        """Queries, keys or values [1, H, N, D] → [R, H, T, D] with zeros at the pads."""
        return self.unpack(x.transpose(1, 2)).transpose(1, 2)


def packing(lengths: Sequence[int], device: torch.device) -> Packing | None:
    """How to pack rows of these lengths, or None where padding is not worth avoiding."""
    padded = len(lengths) * max(lengths)
    return Packing(lengths, device) if padded > WORTH * sum(lengths) else None

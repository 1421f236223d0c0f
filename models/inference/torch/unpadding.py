"""Un-padding on a CPU: projections and MLPs run on the real tokens only, attention on padded rows.

Matrix products dominate the time on a CPU and are independent of the row a token belongs to. Attention is
not, so queries, keys and values are padded on the right for it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

MIN_PADDING_RATIO = 1.02
"""Padded over real tokens above which un-padding pays for the copies around attention."""


class UnpaddedLayout:
    """Index maps between padded rows [R, T, …] and the concatenation of their real tokens [1, N, …].

    Args:
        lengths: tokens of each row, at least 1.
        device: device of the tensors to convert.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.num_rows, self.max_length = len(lengths), max(lengths)
        real = np.arange(self.max_length) < np.asarray(lengths)[:, None]
        self._real_indices = torch.from_numpy(np.flatnonzero(real)).to(device)
        self._pad_indices = torch.from_numpy(np.flatnonzero(~real)).to(device)

    def unpad(self, x: Tensor) -> Tensor:
        """[R, T, …] → [1, N, …], the N real tokens."""
        return x.flatten(0, 1).index_select(0, self._real_indices).unsqueeze(0)

    def pad(self, x: Tensor) -> Tensor:
        """[1, N, …] → [R, T, …] with zeros at the pads."""
        padded = x.new_empty(self.num_rows * self.max_length, *x.shape[2:])
        # Pads carry zero weight, but 0 · NaN is NaN, so they must be finite.
        padded.index_copy_(0, self._real_indices, x[0]).index_fill_(0, self._pad_indices, 0)
        return padded.unflatten(0, (self.num_rows, self.max_length))

    def pad_heads(self, x: Tensor) -> Tensor:
        """Queries, keys or values [1, H, N, D] → [R, H, T, D] with zeros at the pads."""
        return self.pad(x.transpose(1, 2)).transpose(1, 2)


def make_unpadded_layout(lengths: Sequence[int], device: torch.device) -> UnpaddedLayout | None:
    """Layout for rows of these lengths, or None if there is too little padding to save."""
    padded = len(lengths) * max(lengths)
    return UnpaddedLayout(lengths, device) if padded > MIN_PADDING_RATIO * sum(lengths) else None

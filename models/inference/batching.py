"""Batches of sequences of similar length, longest first, within a budget of padded tokens."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

MAX_PADDING_FRACTION = 0.1


def make_length_batches(
    lengths: Sequence[int],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    unpadded_tokens: Sequence[int] | None = None,
    max_padding: float = MAX_PADDING_FRACTION,
) -> list[list[int]]:
    """Split sequences into batches of similar length.

    Longest first, so that a batch that does not fit into memory fails early. A batch is closed when another
    sequence would exceed `max_tokens`, or when it already holds `min_tokens` and more than
    `max_padding` of it would be padding.

    Args:
        lengths: tokens of each sequence, at least 1.
        max_tokens: token budget of a batch, padding and `unpadded_tokens` included; a longer sequence gets a
            batch of its own.
        min_tokens: padded tokens below which a batch is not closed because of padding alone.
        unpadded_tokens: tokens that accompany each sequence but are not padded to its batch.
        max_padding: share of a batch.

    Returns:
        Lists of sequence indices; every index is in exactly one.
    """
    result: list[list[int]] = []
    batch: list[int] = []
    real = extra = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch:
            # Size of the batch if this sequence joined it.
            padded = lengths[batch[0]] * (len(batch) + 1)
            wasteful = padded > min_tokens and real + lengths[index] < (1 - max_padding) * padded
            if padded + extra + (unpadded_tokens[index] if unpadded_tokens else 0) > max_tokens or wasteful:
                result.append(batch)
                batch, real, extra = [], 0, 0
        batch.append(index)
        real += lengths[index]
        extra += unpadded_tokens[index] if unpadded_tokens else 0
    if batch:
        result.append(batch)
    return result


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Indices of requests that run together; all contexts start with the same `num_shared` tokens."""

    indices: list[int]
    num_shared: int = 0

    def halves(self) -> "list[RequestBatch]":
        """Split the batch in two."""
        half = len(self.indices) // 2
        return [
            RequestBatch(self.indices[:half], self.num_shared),
            RequestBatch(self.indices[half:], self.num_shared),
        ]


MAX_PARTIAL_BATCHES = 2
"""Number of partially stored batches up to which a resumed run is assumed to have been interrupted."""


def make_remaining_batches(
    indices: Sequence[int],
    completed: Collection[int],
    make: Callable[[Sequence[int]], list[RequestBatch]],
) -> list[RequestBatch]:
    """Batches of `make(indices)` without completed requests, as an uninterrupted run has them if possible.

    The rounding of a response depends on its batch. An interrupted run has stored complete batches and
    possibly a partial one, which is recomputed in full. If many batches are partial, the stored responses
    come from another set of requests, and the missing ones are batched anew.
    """
    batches = make(indices)
    if not completed:
        return batches
    remaining = [batch for batch in batches if any(index not in completed for index in batch.indices)]
    num_partial = sum(any(index in completed for index in batch.indices) for batch in remaining)
    if num_partial <= MAX_PARTIAL_BATCHES:
        return remaining
    return make([index for index in indices if index not in completed])


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device; through pinned memory on CUDA, so that the host does not block."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pad_right(
    rows: Sequence[Sequence[int] | np.ndarray], device: torch.device, multiple: int = 1
) -> tuple[Tensor, Tensor]:
    """Return token ids [R, T] padded with 0 on the right, T a multiple of `multiple`, and lengths [R]; no row
    may be empty."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    tokens = np.zeros((len(rows), -(-lengths.max() // multiple) * multiple), dtype=np.int64)
    all_of_them = chain.from_iterable(row.tolist() if isinstance(row, np.ndarray) else row for row in rows)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.fromiter(all_of_them, np.int64, lengths.sum())
    return to_device(tokens, device), to_device(lengths, device)

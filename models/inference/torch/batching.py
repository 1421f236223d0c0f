"""Batches of sequences of similar length, longest first, within a budget of padded tokens."""

from collections.abc import Sequence

MAX_PADDING_FRACTION = 0.1


def make_length_batches(
    lengths: Sequence[int],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    unpadded_tokens: Sequence[int] | None = None,
) -> list[list[int]]:
    """Split sequences into batches of similar length.

    Longest first, so that a batch that does not fit into memory fails early. A batch is closed when another
    sequence would exceed `max_tokens`, or when it already holds `min_tokens` and more than a tenth of it
    would be padding.

    Args:
        lengths: tokens of each sequence, at least 1.
        max_tokens: token budget of a batch, padding and `unpadded_tokens` included; a longer sequence gets a
            batch of its own.
        min_tokens: padded tokens below which a batch is not closed because of padding alone.
        unpadded_tokens: tokens that accompany each sequence but are not padded to its batch.

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
            wasteful = padded > min_tokens and real + lengths[index] < (1 - MAX_PADDING_FRACTION) * padded
            if padded + extra + (unpadded_tokens[index] if unpadded_tokens else 0) > max_tokens or wasteful:
                result.append(batch)
                batch, real, extra = [], 0, 0
        batch.append(index)
        real += lengths[index]
        extra += unpadded_tokens[index] if unpadded_tokens else 0
    if batch:
        result.append(batch)
    return result

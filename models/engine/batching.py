"""Which rows run together: longest first, of similar length, within a budget of padded tokens."""

from collections.abc import Sequence

WASTE = 0.1


def batches(
    lengths: Sequence[int], *, budget: int, floor: int = 0, extra: Sequence[int] | None = None
) -> list[list[int]]:
    """Split rows into batches of similar length.

    Longest first, so that a batch that does not fit into memory shows at once. A batch is closed when
    another row would exceed `budget` tokens, or when it already holds `floor` tokens and would then be
    padded by more than a tenth.

    Args:
        lengths: tokens of each row, at least 1.
        budget: most tokens in a batch, padding and `extra` included; a row beyond it still gets one.
        floor: padded tokens below which a batch is not closed because of padding alone.
        extra: tokens that come with each row but are not padded to its batch.

    Returns:
        Lists of row numbers; every row is in exactly one.
    """
    result: list[list[int]] = []
    batch: list[int] = []
    real = added = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch:
            # As if the row were in the batch already.
            padded = lengths[batch[0]] * (len(batch) + 1)
            wasteful = padded > floor and real + lengths[row] < (1 - WASTE) * padded
            if padded + added + (extra[row] if extra else 0) > budget or wasteful:
                result.append(batch)
                batch, real, added = [], 0, 0
        batch.append(row)
        real += lengths[row]
        added += extra[row] if extra else 0
    if batch:
        result.append(batch)
    return result

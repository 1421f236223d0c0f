"""Sequences packed into rows, as transformers' collators and trainers describe them."""

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import AttentionSpan
from evalsuite.models.ops.short_conv import packed_position_ids


def packed_bounds(
    position_ids: Tensor | None,
    seq_idx: Tensor | None,
    attention_mask: Tensor | None,
    shape: tuple[int, int],
) -> Tensor | None:
    """Bounds [N + 1] of the sequences in B rows of T tokens laid end to end; None if each row is one.

    A sequence begins where `seq_idx` changes or, without it, where `position_ids` does not go on by one.

    Args:
        position_ids: [B, T] or [1, T].
        seq_idx: number of each token's sequence [B, T] or [1, T].
        attention_mask: padded rows are never packed, and pads have any position.
        shape: B and T.

    Raises:
        ConfigError: packed rows with an attention mask that is not all ones.
    """
    if seq_idx is not None:
        starts = seq_idx.diff(dim=-1) != 0
    elif position_ids is not None and position_ids.dim() == 2:
        starts = position_ids.diff(dim=-1) != 1
    else:
        return None
    if attention_mask is not None and attention_mask.dim() == 2:
        real = attention_mask[:, -shape[1] :].bool()
        starts = starts & real[:, 1:] & real[:, :-1]
    if not starts.any():
        return None
    if attention_mask is not None and (attention_mask.dim() != 2 or not real.all()):
        raise ConfigError(
            "position_ids or seq_idx pack several sequences into a row, and the attention_mask has pads or "
            "four dimensions; leave it out"
        )
    first = torch.ones(len(starts), 1, dtype=torch.bool, device=starts.device)
    begins = torch.cat([first, starts], 1).expand(shape).flatten().nonzero().flatten()
    return torch.cat([begins, begins.new_tensor([shape[0] * shape[1]])])


def packed_mask(
    cu_seqlens: Tensor, embeddings: Tensor, span: AttentionSpan, row_length: int | None = None
) -> Tensor:
    """Causal mask of packed sequences, true where attention is allowed: bool [T / L, 1, L, L].

    Args:
        embeddings: [1, T, D].
        span: tokens that a query attends to within its sequence.
        row_length: L, whose multiples no sequence crosses; default T.
    """
    length = embeddings.shape[1]
    position = packed_position_ids(cu_seqlens, length)
    start = torch.arange(length, device=embeddings.device) - position
    position, start = position.view(-1, row_length or length), start.view(-1, row_length or length)
    # Of positions in their own sequences, so that nothing larger than the mask is made.
    visible = span.visible(position.unsqueeze(2), position.unsqueeze(1))
    return (visible & (start.unsqueeze(2) == start.unsqueeze(1))).unsqueeze(1)

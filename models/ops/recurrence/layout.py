"""Layout of tokens in chunks: all first chunks of the sequences, then all second chunks, and so on.

With sequences sorted by length, the chunks of one step are one slice, and the sequences that have a chunk at
that step are the first rows of the state. Packed sequences and rows of equal length therefore share one code
path, whose only loop runs over the chunks of the longest sequence.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLayout:
    """Position of each token of [B, T, …] among M chunks of C tokens."""

    batch: int
    length: int
    chunk_size: int
    num_active: tuple[int, ...]
    """Number of sequences with a chunk at each step."""
    slot_to_token: Tensor | None = None
    """Packed only: token index of each of the M·C slots, or T for an empty slot."""
    token_to_slot: Tensor | None = None
    """Packed only: slot of each token."""
    order: Tensor | None = None
    """Packed only: sequence indices by descending length."""

    @property
    def num_steps(self) -> int:
        return len(self.num_active)

    def chunk(self, x: Tensor) -> Tensor:
        """[B, T, H, …] → [M, H, C, …], empty slots filled with zeros."""
        tail = x.shape[2:]
        if self.slot_to_token is None:
            padding = self.num_steps * self.chunk_size - self.length
            padded = functional.pad(x, [0, 0] * (x.dim() - 2) + [0, padding])
            chunks = padded.view(self.batch, self.num_steps, self.chunk_size, *tail).transpose(0, 1)
            return chunks.reshape(-1, self.chunk_size, *tail).transpose(1, 2).contiguous()
        padded = functional.pad(x[0], [0, 0] * (x.dim() - 2) + [0, 1])
        return padded[self.slot_to_token].view(-1, self.chunk_size, *tail).transpose(1, 2).contiguous()

    def unchunk(self, x: Tensor) -> Tensor:
        """[M, H, C, V] → [B, T, H, V], the inverse of `chunk`."""
        x = x.transpose(1, 2)
        if self.token_to_slot is None:
            x = x.reshape(self.num_steps, self.batch, self.chunk_size, *x.shape[2:]).transpose(0, 1)
            return x.reshape(self.batch, self.num_steps * self.chunk_size, *x.shape[3:])[:, : self.length]
        return x.reshape(-1, *x.shape[2:])[self.token_to_slot].unsqueeze(0)


def fixed_layout(batch: int, length: int, chunk_size: int) -> ChunkLayout:
    """Layout of `batch` sequences of equal length."""
    num_steps = -(-length // chunk_size)
    return ChunkLayout(batch=batch, length=length, chunk_size=chunk_size, num_active=(batch,) * num_steps)


def packed_layout(cu_seqlens: Tensor, length: int, chunk_size: int) -> ChunkLayout:
    """Layout of sequences packed into one row; each sequence starts a new chunk."""
    bounds = cu_seqlens.tolist()
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    slots: list[Tensor] = []
    num_active = []
    for step in range(-(-max(lengths, default=0) // chunk_size)):
        sequences = [n for n in order if lengths[n] > step * chunk_size]
        num_active.append(len(sequences))
        for n in sequences:
            first = bounds[n] + step * chunk_size
            tokens = torch.arange(first, first + chunk_size)
            slots.append(torch.where(tokens < bounds[n + 1], tokens, length))
    index = torch.cat(slots) if slots else torch.zeros(0, dtype=torch.long)
    token_to_slot = torch.zeros(length + 1, dtype=torch.long)
    token_to_slot[index] = torch.arange(index.numel())
    device = cu_seqlens.device
    return ChunkLayout(
        batch=1,
        length=length,
        chunk_size=chunk_size,
        num_active=tuple(num_active),
        slot_to_token=index.to(device),
        token_to_slot=token_to_slot[:length].to(device),
        order=torch.tensor(order, dtype=torch.long, device=device),
    )

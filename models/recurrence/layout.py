"""How tokens are laid out in chunks: all first chunks, then all second chunks, and so on.

With the sequences sorted by length, the chunks of one step are one slice and the sequences still alive
are the first rows of the state, so that packed and equally long sequences take the same path and the
only loop runs over the chunks of the longest sequence.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each token of [B, T, …] lies among M chunks of C tokens."""

    batch: int
    length: int
    chunk: int
    active: tuple[int, ...]
    """How many sequences have a chunk at each step."""
    source: Tensor | None = None
    """Packed only: for each of the M·C places the token that lies there, or T for an empty place."""
    place: Tensor | None = None
    """Packed only: the place of each token."""
    order: Tensor | None = None
    """Packed only: sequence numbers from long to short."""

    @property
    def steps(self) -> int:
        return len(self.active)

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H, …] → [M, H, C, …], empty places filled with zeros."""
        tail = x.shape[2:]
        if self.source is None:
            padded = functional.pad(x, [0, 0] * (x.dim() - 2) + [0, self.steps * self.chunk - self.length])
            chunks = padded.view(self.batch, self.steps, self.chunk, *tail).transpose(0, 1)
            return chunks.reshape(-1, self.chunk, *tail).transpose(1, 2).contiguous()
        padded = functional.pad(x[0], [0, 0] * (x.dim() - 2) + [0, 1])
        return padded[self.source].view(-1, self.chunk, *tail).transpose(1, 2).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """[M, H, C, V] → [B, T, H, V], the inverse of `split`."""
        x = x.transpose(1, 2)
        if self.place is None:
            x = x.reshape(self.steps, self.batch, self.chunk, *x.shape[2:]).transpose(0, 1)
            return x.reshape(self.batch, self.steps * self.chunk, *x.shape[3:])[:, : self.length]
        return x.reshape(-1, *x.shape[2:])[self.place].unsqueeze(0)


def fixed_layout(batch: int, length: int, chunk: int) -> Layout:
    """Layout of `batch` equally long sequences."""
    steps = -(-length // chunk)
    return Layout(batch=batch, length=length, chunk=chunk, active=(batch,) * steps)


def packed_layout(cu_seqlens: Tensor, length: int, chunk: int) -> Layout:
    """Layout of sequences packed into one row; each starts a chunk of its own."""
    bounds = cu_seqlens.tolist()
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    source: list[Tensor] = []
    active = []
    for step in range(-(-max(lengths, default=0) // chunk)):
        alive = [n for n in order if lengths[n] > step * chunk]
        active.append(len(alive))
        for n in alive:
            first = bounds[n] + step * chunk
            here = torch.arange(first, first + chunk)
            source.append(torch.where(here < bounds[n + 1], here, length))
    index = torch.cat(source) if source else torch.zeros(0, dtype=torch.long)
    place = torch.zeros(length + 1, dtype=torch.long)
    place[index] = torch.arange(index.numel())
    device = cu_seqlens.device
    return Layout(
        batch=1,
        length=length,
        chunk=chunk,
        active=tuple(active),
        source=index.to(device),
        place=place[:length].to(device),
        order=torch.tensor(order, dtype=torch.long, device=device),
    )

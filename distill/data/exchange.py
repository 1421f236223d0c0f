"""Exchange of tokenized documents among the processes of a run."""

import pickle
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import distributed

from evalsuite.distill.data.documents import Share
from evalsuite.distill.data.packing import Document
from evalsuite.foundation import DataError


def join_exchange(rank: int, world_size: int) -> Share:
    """The share of this process in tokenizing; a collective call.

    Tokens travel over gloo, apart from the gradients of the training steps.
    """
    if world_size == 1:
        return Share()
    group = distributed.new_group(backend="gloo")
    return Share(rank, world_size, partial(exchange_documents, group))


def exchange_documents(group: distributed.ProcessGroup, own: Sequence[Document]) -> list[Document]:
    """All documents of a group of documents, of which every process has each world_size-th; collective.

    Raises:
        DataError: another process has ended.
    """
    payload = torch.frombuffer(bytearray(encode(own)), dtype=torch.uint8)
    world_size = distributed.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    try:
        distributed.all_gather(sizes, torch.tensor([len(payload)]), group)
        longest = int(max(sizes))
        received = [torch.empty(longest, dtype=torch.uint8) for _ in range(world_size)]
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(payload)] = payload
        distributed.all_gather(received, padded, group)
    except RuntimeError as error:
        raise DataError(
            f"the processes of this run cannot exchange tokens; one has ended ({error})"
        ) from error
    shares = [decode(part[: int(size)].numpy().tobytes()) for part, size in zip(received, sizes, strict=True)]
    return interleave_shares(shares)


def interleave_shares(shares: Sequence[Sequence[Document]]) -> list[Document]:
    """The documents in order, of which share r has every len(shares)-th, from r."""
    count = sum(map(len, shares))
    return [shares[number % len(shares)][number // len(shares)] for number in range(count)]


def encode(documents: Sequence[Document]) -> bytes:
    """Lengths, tokens, and packed loss masks and second copies of the documents."""
    lengths = np.array([len(document.tokens) for document in documents], dtype=np.int64)
    none = np.empty(0, dtype=bool)
    empty = Document(np.empty(0, dtype=np.int32), none, none)
    tokens = np.concatenate([document.tokens for document in (*documents, empty)])
    mask = np.packbits(np.concatenate([document.loss_mask for document in (*documents, empty)]))
    second = np.packbits(np.concatenate([document.second_copy for document in (*documents, empty)]))
    return pickle.dumps((lengths, tokens, mask, second), protocol=pickle.HIGHEST_PROTOCOL)


def decode(payload: bytes) -> list[Document]:
    """The documents that `encode` wrote."""
    lengths, tokens, mask, second = pickle.loads(payload)
    loss_mask, second_copy = (
        np.unpackbits(packed, count=len(tokens)).astype(bool) for packed in (mask, second)
    )
    ends = np.cumsum(lengths)
    return [
        Document(tokens[end - length : end], loss_mask[end - length : end], second_copy[end - length : end])
        for end, length in zip(ends, lengths, strict=True)
    ]

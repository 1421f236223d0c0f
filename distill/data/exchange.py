"""Exchange of tokenized documents among the processes of a run."""

from collections.abc import Sequence
from functools import partial

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
    shares: list[Sequence[Document]] = [()] * distributed.get_world_size(group)
    try:
        distributed.all_gather_object(shares, own, group)
    except RuntimeError as error:
        raise DataError(
            f"the processes of this run cannot exchange tokens; one has ended ({error})"
        ) from error
    return interleave_shares(shares)


def interleave_shares(shares: Sequence[Sequence[Document]]) -> list[Document]:
    """The documents in order, of which share r has every len(shares)-th, from r."""
    count = sum(map(len, shares))
    return [shares[number % len(shares)][number // len(shares)] for number in range(count)]

"""Batches for a stage: the rows of its mixture, cut among GPUs, on the device, read ahead by a thread."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evalsuite.distill.chat import chat_renderer
from evalsuite.distill.packing import Document, Row, echoed, tokenize
from evalsuite.distill.readers import POCKET_WINDOW, Example, Reader, open_reader
from evalsuite.distill.recipe import Recipe, Stage
from evalsuite.distill.streams import PocketProvider, SerialProvider, mixed_rows, source_rows
from evalsuite.foundation import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens of some sequences: inputs and labels [B, T] int64.

    `kept` int64 are the places in the flattened batch whose labels count; None if all do. Packed by
    document, `positions` [B, T] restart with each document and `cu_seqlens` [N+1] int32 are the
    documents' borders in the flattened batch; otherwise both are None.
    """

    inputs: Tensor
    labels: Tensor
    kept: Tensor | None = None
    positions: Tensor | None = None
    cu_seqlens: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether all labels count and no row holds packed documents."""
        return self.kept is None and self.cu_seqlens is None

    def to(self, device: torch.device) -> "Batch":
        """The batch on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory, from which a copy to a GPU does not wait."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        given = (self.inputs, self.labels, self.kept, self.positions, self.cu_seqlens)
        return Batch(*(None if tensor is None else move(tensor) for tensor in given))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class StepData:
    """What one optimizer step trains on: this GPU's micro-batches, and figures of all GPUs together."""

    micro_batches: list[Batch]
    counted: int
    """Labels that count, over all GPUs and micro-batches: the denominator of the per-token mean."""
    tokens: int
    state: dict[str, Any]
    """Where the data stands after this step."""


def collate(rows: Sequence[Row], *, packed: bool) -> Batch:
    """Stack rows; `packed` adds the documents' borders and positions."""
    inputs = torch.from_numpy(np.stack([row.inputs for row in rows]).astype(np.int64))
    labels = torch.from_numpy(np.stack([row.labels for row in rows]).astype(np.int64))
    counts = np.stack([row.counts for row in rows])
    kept = None if counts.all() else torch.from_numpy(counts.reshape(-1).nonzero()[0])
    if not packed:
        return Batch(inputs, labels, kept)
    lengths = np.array([length for row in rows for length in row.lengths])
    borders = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(borders[-1]) - np.repeat(borders[:-1], lengths)
    return Batch(
        inputs,
        labels,
        kept,
        torch.from_numpy(positions.reshape(len(rows), -1)),
        torch.from_numpy(borders.astype(np.int32)),
    )


class StageData:
    """The steps of one stage, in order, from a saved state or from the start.

    Args:
        tokenizer: a fast tokenizer of transformers.
        state: what `StepData.state` said after the last step that was done.
        rank, world: this process and how many there are; each takes its share of every batch, so that
            the batches of one GPU and of several are the same.
        readers: readers of local sources by name, shared among stages: each remembers what it read last,
            which for the next stage is often what it needs first.
    """

    def __init__(
        self,
        recipe: Recipe,
        stage: Stage,
        tokenizer: Any,
        *,
        state: dict[str, Any] | None = None,
        rank: int = 0,
        world: int = 1,
        pin: bool = False,
        readers: dict[str, Reader] | None = None,
    ) -> None:
        self._stage, self._rank, self._world, self._pin = stage, rank, world, pin
        self._readers = {} if readers is None else readers
        if stage.batch % world:
            raise ConfigError(
                f"stage '{stage.name}': 'batch' ({stage.batch}) is not a multiple of {world} GPUs"
            )
        self.micro_batch = min(stage.micro_batch or stage.batch, stage.batch // world)
        if (stage.batch // world) % self.micro_batch:
            raise ConfigError(
                f"stage '{stage.name}': {stage.batch // world} sequences a GPU are not a multiple of "
                f"'micro_batch' ({self.micro_batch})"
            )
        streams = {
            name: source_rows(
                name,
                recipe.data[name],
                self._provider(recipe, name, tokenizer),
                length=stage.length,
                packing=stage.packing,
                pad=end_token(tokenizer),
                seed=recipe.seed,
                state=(state or {}).get("streams", {}).get(name),
            )
            for name in stage.mixture
        }
        self._rows = mixed_rows(streams, stage.mixture, state)

    def _provider(self, recipe: Recipe, name: str, tokenizer: Any) -> SerialProvider | PocketProvider:
        source, end = recipe.data[name], end_token(tokenizer)
        completions = self._stage.mask == "completion"
        backend = tokenizer.backend_tokenizer
        if source.kind == "pocket" and source.workers:
            return PocketProvider(source, POCKET_WINDOW, backend, end, completions=completions)
        render = chat_renderer(tokenizer, source.chat_template) if source.messages is not None else None
        reader = self._readers.get(name) or open_reader(source, name, render)
        if source.kind == "local":
            self._readers[name] = reader

        def encode(examples: Sequence[Example]) -> list[Document]:
            documents = tokenize(examples, backend, end, completions=completions)
            if source.echo is None:
                return documents
            return [echoed(each, source.echo, source.echo_spans) for each in documents]

        return SerialProvider(reader, encode)

    def __iter__(self) -> Iterator[StepData]:
        return self

    def __next__(self) -> StepData:
        stage = self._stage
        rows = list(islice(self._rows, stage.batch))
        if len(rows) < stage.batch:
            raise DataError(
                f"stage '{stage.name}': the data end before the budget of {stage.tokens:,} tokens is spent; "
                "let the source repeat, or lower the budget"
            )
        taken = [row for row, _ in rows]
        counted = int(sum(row.counts.sum() for row in taken))
        mine = taken[self._rank :: self._world]
        packed = stage.packing == "documents"
        batches = [
            collate(mine[start : start + self.micro_batch], packed=packed)
            for start in range(0, len(mine), self.micro_batch)
        ]
        if self._pin:
            batches = [batch.pin_memory() for batch in batches]
        return StepData(batches, counted, stage.batch * stage.length, rows[-1][1])


def end_token(tokenizer: Any) -> int:
    """The token that closes a document.

    Raises:
        ConfigError: the tokenizer has none.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token, so documents cannot be told apart")
    return int(tokenizer.eos_token_id)


def check_data(recipe: Recipe, tokenizer: Any) -> dict[str, Reader]:
    """Read the first batch of every stage, so that bad data is refused before anything is trained.

    Returns:
        Readers for `StageData`.

    Raises:
        DataError: a missing file or column, no document after filtering, or a mask that leaves no token.
    """
    readers: dict[str, Reader] = {}
    for stage in recipe.stages:
        if next(StageData(recipe, stage, tokenizer, readers=readers)).counted == 0:
            raise DataError(
                f"stage '{stage.name}': with mask '{stage.mask}' no token of the first batch counts; "
                "the data hold no completions, or their chat template does not fit"
            )
    return readers


def read_ahead(steps: Iterator[StepData], depth: int = 4) -> Iterator[StepData]:
    """Yield from `steps`, which a thread runs up to `depth` items ahead; its errors are raised here."""
    buffer: queue.Queue[StepData | BaseException | None] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: StepData | BaseException | None) -> None:
        while not stop.is_set():
            try:
                buffer.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for item in steps:
                if stop.is_set():
                    return
                put(item)
            put(None)
        except BaseException as error:  # handed over whole, whatever it is
            put(error)

    thread = threading.Thread(target=read, daemon=True, name="read-ahead")
    thread.start()
    try:
        while (item := buffer.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()

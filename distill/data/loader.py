"""Data loader of a stage: global batches from its mixture, split over GPUs and prefetched by a thread."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from evalsuite.distill.data.chat import source_renderer
from evalsuite.distill.data.config import LocalSourceConfig, PocketSourceConfig
from evalsuite.distill.data.documents import DocumentSource, PocketDocumentSource, SerialDocumentSource
from evalsuite.distill.data.mixture import interleave, pack_source, start_of_stage
from evalsuite.distill.data.packing import Document, PackedSequence, repeat_spans, tokenize
from evalsuite.distill.data.sources import POCKET_SHARD_SIZE, Example, Reader, open_reader
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.stage import Stage
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import ConfigError, DataError


def collate(sequences: Sequence[PackedSequence], *, packed: bool) -> MicroBatch:
    """Stack sequences; `packed` adds document boundaries and positions."""
    input_ids = torch.from_numpy(np.stack([each.input_ids for each in sequences]).astype(np.int64))
    labels = torch.from_numpy(np.stack([each.labels for each in sequences]).astype(np.int64))
    loss_mask = np.stack([each.loss_mask for each in sequences])
    loss_indices = None if loss_mask.all() else torch.from_numpy(loss_mask.reshape(-1).nonzero()[0])
    if not packed:
        return MicroBatch(input_ids, labels, loss_indices)
    lengths = np.array([length for each in sequences for length in each.doc_lengths])
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(boundaries[-1]) - np.repeat(boundaries[:-1], lengths)
    return MicroBatch(
        input_ids,
        labels,
        loss_indices,
        torch.from_numpy(positions.reshape(len(sequences), -1)),
        torch.from_numpy(boundaries.astype(np.int32)),
    )


class StageDataLoader:
    """Iterator over the global batches of one stage, from a saved state or from the start.

    Args:
        tokenizer: a fast tokenizer of transformers.
        state: `GlobalBatch.state` of the last completed step.
        previous: source → its state after the last stage that read it, where this stage continues.
        rank, world_size: each process takes its share of every global batch, so that the global batches
            do not depend on the number of GPUs.
        readers: local readers shared between stages, so that the last shard stays cached.
    """

    def __init__(
        self,
        recipe: Recipe,
        stage: Stage,
        tokenizer: Any,
        *,
        state: dict[str, Any] | None = None,
        previous: Mapping[str, dict[str, Any]] = MappingProxyType({}),
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        readers: dict[str, Reader] | None = None,
    ) -> None:
        self._stage, self._rank, self._world_size = stage, rank, world_size
        self._pin_memory = pin_memory
        self._readers = {} if readers is None else readers
        if stage.batch_size % world_size:
            raise ConfigError(
                f"stage '{stage.name}': 'batch_size' ({stage.batch_size}) is not a multiple of "
                f"{world_size} GPUs"
            )
        local_batch_size = stage.batch_size // world_size
        self.micro_batch_size = min(stage.micro_batch_size or stage.batch_size, local_batch_size)
        if local_batch_size % self.micro_batch_size:
            raise ConfigError(
                f"stage '{stage.name}': {local_batch_size} sequences per GPU are not a multiple of "
                f"'micro_batch_size' ({self.micro_batch_size})"
            )
        sources = {
            name: pack_source(
                name,
                recipe.data[name],
                self._document_source(recipe, name, tokenizer),
                length=stage.seq_len,
                packing=stage.packing,
                pad_id=eos_token_id(tokenizer),
                seed=recipe.seed,
                state=(state or {}).get("sources", {}).get(name)
                or start_of_stage(previous.get(name), restart=stage.restart_data),
            )
            for name in stage.mixture
        }
        self._sequences = interleave(sources, stage.mixture, state)

    def _document_source(self, recipe: Recipe, name: str, tokenizer: Any) -> DocumentSource:
        source, eos_id = recipe.data[name], eos_token_id(tokenizer)
        mask_prompt = self._stage.loss_mask == "completion"
        backend = tokenizer.backend_tokenizer
        if isinstance(source, PocketSourceConfig) and source.num_workers:
            return PocketDocumentSource(source, POCKET_SHARD_SIZE, backend, eos_id, mask_prompt=mask_prompt)
        render = source_renderer(tokenizer, source)
        reader = self._readers.get(name) or open_reader(source, name, render)
        if isinstance(source, LocalSourceConfig):
            self._readers[name] = reader

        def encode(examples: Sequence[Example]) -> list[Document]:
            documents = tokenize(examples, backend, eos_id, mask_prompt=mask_prompt)
            if source.repeat_chunk_tokens is None:
                return documents
            return [
                repeat_spans(document, source.repeat_chunk_tokens, source.repeat_span_tokens)
                for document in documents
            ]

        return SerialDocumentSource(reader, encode)

    def __iter__(self) -> Iterator[GlobalBatch]:
        return self

    def __next__(self) -> GlobalBatch:
        stage = self._stage
        drawn = list(islice(self._sequences, stage.batch_size))
        if len(drawn) < stage.batch_size:
            raise DataError(
                f"stage '{stage.name}': the data end before the budget of {stage.tokens:,} tokens is spent; "
                "set 'infinite: true' for the source, or lower the budget"
            )
        sequences = [sequence for sequence, _ in drawn]
        num_loss_tokens = int(sum(sequence.loss_mask.sum() for sequence in sequences))
        local_sequences = sequences[self._rank :: self._world_size]
        packed = stage.packing == "documents"
        batches = [
            collate(local_sequences[start : start + self.micro_batch_size], packed=packed)
            for start in range(0, len(local_sequences), self.micro_batch_size)
        ]
        if self._pin_memory:
            batches = [batch.pin_memory() for batch in batches]
        return GlobalBatch(batches, num_loss_tokens, stage.tokens_per_step, drawn[-1][1])


def eos_token_id(tokenizer: Any) -> int:
    """The token that terminates a document.

    Raises:
        ConfigError: the tokenizer has none.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token, which is needed to separate documents")
    return int(tokenizer.eos_token_id)


def validate_data(recipe: Recipe, tokenizer: Any) -> dict[str, Reader]:
    """Read the first batch of every stage, so that invalid data is refused before training starts.

    Returns:
        Readers for `StageDataLoader`.

    Raises:
        DataError: a missing file or column, no document after filtering, or no loss token in the first batch.
    """
    readers: dict[str, Reader] = {}
    for stage in recipe.stages:
        if next(StageDataLoader(recipe, stage, tokenizer, readers=readers)).num_loss_tokens == 0:
            raise DataError(
                f"stage '{stage.name}': the first batch has no loss tokens with loss_mask "
                f"'{stage.loss_mask}'; the data contain no completions, or the chat template does not match"
            )
    return readers


def prefetch(batches: Iterator[GlobalBatch], depth: int = 4) -> Iterator[GlobalBatch]:
    """Yield from `batches`, which a thread advances up to `depth` items ahead; its errors are raised here."""
    buffer: queue.Queue[GlobalBatch | BaseException | None] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: GlobalBatch | BaseException | None) -> None:
        while not stop.is_set():
            try:
                buffer.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for item in batches:
                if stop.is_set():
                    return
                put(item)
            put(None)
        except BaseException as error:  # raised again in the consuming thread
            put(error)

    thread = threading.Thread(target=read, daemon=True, name="prefetch")
    thread.start()
    try:
        while (item := buffer.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()

"""Data loader of a stage: global batches from its mixture, split over GPUs and prefetched by a thread."""

import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from evalsuite.distill.data.documents import Share, SourceDocuments
from evalsuite.distill.data.mixture import furthest_behind, interleave, pack_source, start_of_stage
from evalsuite.distill.data.packing import PackedSequence, prompts_of
from evalsuite.distill.data.preparation import Preparation, eos_token_id
from evalsuite.distill.data.readers import open_reader
from evalsuite.distill.data.teacher_store import Targets
from evalsuite.distill.data.token_weights import step_weights
from evalsuite.distill.data.workers import WorkerPool
from evalsuite.distill.recipe.data_sources import DataSourceConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import ConfigError, DataError


def collate(sequences: Sequence[PackedSequence], *, packed: bool) -> MicroBatch:
    """Stack sequences; `packed` adds document boundaries and positions."""
    input_ids, labels = (
        torch.from_numpy(np.stack(rows).astype(np.int64))
        for rows in ([each.input_ids for each in sequences], [each.labels for each in sequences])
    )
    loss_mask = np.stack([each.loss_mask for each in sequences])
    loss_indices = None if loss_mask.all() else torch.from_numpy(loss_mask.reshape(-1).nonzero()[0])
    weights = [each.weights for each in sequences if each.weights is not None]
    batch = MicroBatch(
        input_ids, labels, loss_indices, loss_weights=torch.from_numpy(np.stack(weights)) if weights else None
    )
    if not packed:
        return batch
    lengths = np.array([length for each in sequences for length in each.doc_lengths])
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(boundaries[-1]) - np.repeat(boundaries[:-1], lengths)
    return replace(
        batch,
        position_ids=torch.from_numpy(positions.reshape(len(sequences), -1)),
        cu_seqlens=torch.from_numpy(boundaries.astype(np.int32)),
    )


def _with_targets(
    batch: MicroBatch, sequences: Sequence[PackedSequence], numbers: Sequence[int], targets: Targets
) -> MicroBatch:
    """The batch of `sequences`, which have these `numbers` in their stage, with the teacher's output."""
    found = [targets(number, each) for number, each in zip(numbers, sequences, strict=True)]
    ids, log_probs = (torch.from_numpy(np.concatenate(rows)) for rows in zip(*found, strict=True))
    return replace(batch, top_ids=ids, top_log_probs=log_probs)


def masks_prompt(stage: Stage) -> bool:
    """Whether prompts are left out of the loss."""
    return stage.loss_mask == "completion"


class DataSources:
    """The sources of a recipe by name, opened when they are first read, and shared by its stages.

    Args:
        tokenizer: a fast tokenizer of transformers.
        seed: of the order of the documents, together with each source's own.
        num_workers: processes that parse and tokenize; 0: the calling thread does.
        share: of the documents that this process tokenizes; default: all.
    """

    def __init__(
        self,
        sources: Mapping[str, DataSourceConfig],
        tokenizer: Any,
        *,
        seed: int,
        num_workers: int = 0,
        share: Share | None = None,
    ) -> None:
        self._sources, self._seed, self.share = sources, seed, share or Share()
        self.pad_id = eos_token_id(tokenizer)
        self._pool = WorkerPool(Preparation(sources, tokenizer), num_workers)
        self._documents: dict[str, SourceDocuments] = {}

    def __getitem__(self, name: str) -> SourceDocuments:
        """The documents of a source. Raises DataError if it cannot be opened."""
        if name not in self._documents:
            source = self._sources[name]
            self._documents[name] = SourceDocuments(
                name, source, open_reader(source, name), self._pool, self._seed
            )
        return self._documents[name]

    @property
    def num_workers(self) -> int:
        """Processes that parse and tokenize."""
        return self._pool.num_workers

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()


class StageDataLoader:
    """Iterator over the global batches of one stage, from a saved state or from the start.

    Args:
        state: `GlobalBatch.state` of the last completed step.
        previous: source → its state after the last stage that read it, where this stage continues.
        rank, world_size: each process takes its share of every global batch, so that the global batches
            do not depend on the number of GPUs. Those that share sequences count as one.
        targets: the teacher's output of a teacher store, which then comes with the batches.
        with_prompts: of the sequences that students write themselves (see `Stage.num_rollouts`), give the
            prompts alone.
    """

    def __init__(
        self,
        sources: DataSources,
        stage: Stage,
        *,
        state: dict[str, Any] | None = None,
        previous: Mapping[str, dict[str, Any]] = MappingProxyType({}),
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        targets: Targets | None = None,
        with_prompts: bool = False,
    ) -> None:
        self._stage, self._rank, self._world_size = stage, rank, world_size
        self._pin_memory, self._targets = pin_memory, targets
        self._num_prompted = stage.num_rollouts if with_prompts else 0
        self._number = sum((state or {}).get("num_drawn", {}).values())
        if stage.batch_size % world_size:
            raise ConfigError(
                f"stage '{stage.name}': 'batch_size' ({stage.batch_size}) is not a multiple of "
                f"{world_size} GPUs, or groups of them that share sequences"
            )
        local_batch_size = stage.batch_size // world_size
        self.micro_batch_size = min(stage.micro_batch_size or stage.batch_size, local_batch_size)
        if local_batch_size % self.micro_batch_size:
            raise ConfigError(
                f"stage '{stage.name}': {local_batch_size} sequences per GPU are not a multiple of "
                f"'micro_batch_size' ({self.micro_batch_size})"
            )
        packed = {
            name: pack_source(
                sources[name],
                share=sources.share,
                mask_prompt=masks_prompt(stage),
                length=stage.seq_len,
                packing=stage.packing,
                pad_id=sources.pad_id,
                whole_only=stage.num_rollouts > 0,
                state=(state or {}).get("sources", {}).get(name)
                or start_of_stage(previous.get(name), restart=stage.restart_data),
            )
            for name in stage.mixture
        }
        self._sequences = interleave(packed, stage.mixture, state)

    def __iter__(self) -> Iterator[GlobalBatch]:
        return self

    def draw(self, count: int) -> tuple[list[PackedSequence], dict[str, Any]]:
        """The next `count` sequences, of all processes, and the state after them.

        Raises:
            DataError: the data end before.
        """
        drawn = list(islice(self._sequences, count))
        if len(drawn) < count:
            raise DataError(
                f"stage '{self._stage.name}': the data end before the budget of {self._stage.tokens:,} "
                "tokens is spent; set 'infinite: true' for the source, or lower the budget"
            )
        self._number += count
        return [sequence for sequence, _ in drawn], drawn[-1][1]

    def __next__(self) -> GlobalBatch:
        stage, number = self._stage, self._number
        sequences, state = self.draw(stage.batch_size)
        prompts = [prompts_of(sequence) for sequence in sequences[: self._num_prompted]]
        sequences = sequences[self._num_prompted :]
        num_loss_tokens = int(sum(sequence.loss_mask.sum() for sequence in sequences))
        if stage.token_weights is not None:
            # Of the whole step, whose mean they are divided by.
            weights = step_weights(sequences, stage.token_weights)
            sequences = [replace(each, weights=own) for each, own in zip(sequences, weights, strict=True)]
        local = sequences[self._rank :: self._world_size]
        numbers = range(number, self._number)[self._rank :: self._world_size]
        starts = range(0, len(local), self.micro_batch_size)
        places = [slice(start, start + self.micro_batch_size) for start in starts]
        batches = [collate(local[place], packed=stage.packing == "documents") for place in places]
        if self._targets is not None:
            batches = [
                _with_targets(batch, local[place], numbers[place], self._targets)
                for batch, place in zip(batches, places, strict=True)
            ]
        if self._pin_memory:
            batches = [batch.pin_memory() for batch in batches]
        return GlobalBatch(batches, num_loss_tokens, stage.tokens_per_step, state, prompts)


@contextmanager
def validated(sources: DataSources, stages: Sequence[Stage]) -> Iterator[None]:
    """Validate the data in a thread (see `validate_data`) while the body runs, and end when both have.

    Raises:
        As `validate_data`, whose error precedes one of the body.
    """
    checked: Future[None] = Future()

    def validate() -> None:
        try:
            validate_data(sources, stages)
            checked.set_result(None)
        except BaseException as error:  # raised again in the calling thread
            checked.set_exception(error)

    threading.Thread(target=validate, daemon=True, name="validate").start()
    try:
        yield
    except Exception:
        checked.result()
        raise
    checked.result()


def validate_data(sources: DataSources, stages: Sequence[Stage]) -> None:
    """Read the first batch of every stage, so that invalid data is refused before training starts.

    That is rows of the first shuffle buffers, and turns that a chat template drops of the documents that are
    tokenized for the batch; those of later documents are refused when they are reached.

    Raises:
        DataError: a missing file or column, no document after filtering, or no loss token in the first batch.
    """
    if sources.num_workers:
        _prepare(sources, stages)
    for stage in stages:
        loader = StageDataLoader(sources, stage)
        if next(loader).num_loss_tokens == 0:
            raise DataError(
                f"stage '{stage.name}': the first batch has no loss tokens with loss_mask "
                f"'{stage.loss_mask}'; the data contain no completions, or the chat template does not match"
            )
        if stage.num_rollouts and not any(map(prompts_of, loader.draw(stage.batch_size)[0])):
            raise DataError(
                f"stage '{stage.name}': a batch has no prompts that students could continue; its sources "
                "need prompts with completions, or turns"
            )


def _prepare(sources: DataSources, stages: Sequence[Stage]) -> None:
    """Read and tokenize what the first batches begin with, of all sources at once.

    Errors are left to the loader that needs the source: the first one in the order of the batches is raised.
    """
    masks: dict[str, set[bool]] = {}
    for stage in stages:
        num_drawn: Counter[str] = Counter()
        for _ in range(stage.batch_size):
            num_drawn[furthest_behind(stage.mixture, num_drawn)] += 1
        for name in num_drawn:
            masks.setdefault(name, set()).add(masks_prompt(stage))

    def prepare(name: str) -> None:
        with suppress(Exception):
            sources[name].prepare(sources.share, sorted(masks[name]))

    threads = [threading.Thread(target=prepare, args=[name], daemon=True) for name in masks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


JOIN_SECONDS = 2.0
"""Time that the thread of `prefetch` has to end when its consumer stops."""


def prefetch(
    batches: Iterator[GlobalBatch], depth: int = 4, *, collective: bool = False
) -> Iterator[GlobalBatch]:
    """Yield from `batches`, which a thread advances up to `depth` items ahead; its errors are raised here.

    Args:
        collective: advancing `batches` needs all processes of the run. When the consumers stop, at the same
            item, each thread then still advances to the full depth, since the others wait for it.
    """
    buffer: queue.Queue[GlobalBatch | BaseException | None] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: GlobalBatch | BaseException | None) -> bool:
        """Hand an item over; False if the consumer has stopped."""
        while not stop.is_set() or (collective and not buffer.full()):
            try:
                buffer.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for item in batches:
                if not put(item):
                    return
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
        thread.join(JOIN_SECONDS)

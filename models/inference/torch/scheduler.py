"""Continuous batching: sequences of any length decode together, finished ones are replaced by new prompts."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evalsuite.models.inference.batching import to_device
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.inference.sampling import SamplingMetadata, sample
from evalsuite.models.inference.stopping import GenerationState
from evalsuite.models.inference.torch.kv_cache import KVCache
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.prefix_groups import PrefixGroup, build_prefix_groups
from evalsuite.models.inference.torch.static_cache import StaticCacheView, StaticKVCache
from evalsuite.models.mixers.cached_attention import AttentionMasks

KEY_BLOCK = 64
"""Key lengths are rounded up to a multiple of this, so that a captured step serves many lengths."""

NO_PREFIX = PrefixGroup((), {})

StepFunction = Callable[[int, int], None]


class DecodeBatch:
    """Device memory of the sequences that decode together: cache slots and per-sequence state."""

    def __init__(
        self,
        runner: ModelRunner,
        sample_cache: KVCache,
        sampling: SamplingMetadata,
        num_slots: int,
        capacity: int,
    ) -> None:
        self.runner = runner
        self.cache = StaticKVCache(sample_cache, num_slots, capacity)
        self.sampling = sampling
        device = runner.device
        self.token = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.position = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.num_generated = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.non_finite = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self.needs_masks = False
        """Whether the last step computed masks, whose size is that of all keys that it was given."""

    def tensors(self) -> list[Tensor]:
        """All per-sequence tensors except the cache."""
        own = [self.token, self.position, self.num_generated, self.non_finite]
        return own + self.sampling.tensors()

    def read(self, num_seqs: int, length: int) -> Tensor:
        """Read the next token of the first `num_seqs` slots; return the logits [num_seqs, V] after it.

        Args:
            num_seqs: number of slots.
            length: exclusive upper bound on the positions of active slots.
        """
        position = self.position[:num_seqs]
        columns, all_valid = self.cache.columns[None, :length], self.cache.all_valid[None, :length]
        masks = AttentionMasks(position[:, None], columns, all_valid, self.runner.dtype)
        masks.decode_positions = position
        masks.cache_places = None if self.runner.storing is None else position
        view = StaticCacheView(self.cache, num_seqs, length, position)
        hidden = self.runner.forward(self.token[:num_seqs, None], position[:, None], view, masks)
        self.needs_masks = masks.built
        logits: Tensor = self.runner.head.logits(hidden[:, 0])
        return logits

    def step(self, num_seqs: int, length: int) -> None:
        """Run one decode step for the first `num_seqs` slots, in place. Arguments as for `read`."""
        position = self.position[:num_seqs]
        logits = self.read(num_seqs, length)
        tokens, non_finite = sample(
            logits, self.sampling.map(lambda values: values[:num_seqs]), self.num_generated[:num_seqs]
        )
        self.token[:num_seqs].copy_(tokens)
        self.non_finite[:num_seqs].logical_or_(non_finite)
        self.num_generated[:num_seqs].add_(1)
        # A finished sequence may run on until the host collects it; it must not leave its slot.
        position.add_(1).clamp_(max=self.cache.capacity - 1)


@dataclass(slots=True, eq=False)
class SequenceState(GenerationState):
    """Host state of one generation."""

    group: PrefixGroup = NO_PREFIX
    num_shared: int = 0
    """Number of prompt tokens that are in the group's prefix."""
    num_scheduled: int = 0
    """Number of generated tokens that were dispatched, collected or not."""

    @property
    def num_unshared(self) -> int:
        """Number of prompt tokens that are prefilled for this sequence alone."""
        return len(self.request.prompt) - self.num_shared


@dataclass(slots=True)
class StepBlock:
    """Dispatched steps: the sequence in each slot, and tokens and non-finite flags [steps, slots].

    Also a prefill pass, as one step of its rows.
    """

    sequences: list[SequenceState | None]
    tokens: Tensor
    non_finite: Tensor
    ready: torch.cuda.Event | None


class GenerationScheduler:
    """Generates responses to some requests in a fixed number of slots.

    The host collects tokens in blocks of steps. On a GPU prefill passes and the next block are dispatched
    before what came before them is collected, so that the device never waits for the host; a finished
    sequence then runs for one more block, and its additional tokens are discarded.

    Args:
        waiting: in scheduling order, the longest first.
        batch: slots of the sequences that decode together; they may hold what earlier sequences left there.
        step: runs a decode step of `batch` (eager, or CUDA graphs).
        max_prefill_tokens: maximum number of padded tokens in one prefill pass.
        steps_per_block: decode steps between two collections.
        lookahead: blocks that are dispatched before the last one is collected.
        share_prefixes: prefill common prefixes once and schedule the prompts of a group together.
    """

    def __init__(
        self,
        waiting: Sequence[SequenceState],
        *,
        batch: DecodeBatch,
        step: StepFunction,
        max_prefill_tokens: int,
        steps_per_block: int,
        lookahead: int,
        share_prefixes: bool = False,
    ) -> None:
        self.runner = batch.runner
        if share_prefixes:
            waiting = _order_by_prefix(waiting, allow_partial=not self.runner.state_bytes_per_seq)
        self.waiting = deque(waiting)
        self._prefix: tuple[PrefixGroup, KVCache | None] = NO_PREFIX, None
        self.max_prefill_tokens = max_prefill_tokens
        self.steps_per_block, self.lookahead = steps_per_block, lookahead
        self.running: list[SequenceState | None] = []
        """Sequence in each slot."""
        self.batch, self.step = batch, step

    def responses(self) -> Iterator[tuple[int, GenerateResponse]]:
        """Yield (index, response) as sequences finish."""
        dispatched: deque[StepBlock] = deque()
        while True:
            dispatched.extend(self._schedule())
            while dispatched and not self.lookahead:
                yield from self._collect(dispatched.popleft())
            block = self._dispatch()
            if block is not None:
                dispatched.append(block)
            elif not dispatched and not self.waiting:
                return
            while len(dispatched) > (self.lookahead if block is not None else 0):
                yield from self._collect(dispatched.popleft())
            self._compact()

    def _dispatch(self) -> StepBlock | None:
        """Start a block of steps, unless every sequence already has all its tokens scheduled."""
        unfinished = [
            seq for seq in self.running if seq is not None and seq.num_scheduled < seq.stop_checker.limit
        ]
        if not unfinished:
            return None
        remaining = max(seq.stop_checker.limit - seq.num_scheduled for seq in unfinished)
        steps = min(self.steps_per_block, remaining)
        longest = max(len(seq.request.prompt) + seq.num_scheduled for seq in unfinished)
        length = min(-(-(longest + steps) // KEY_BLOCK) * KEY_BLOCK, self.batch.cache.capacity)
        num_seqs = len(self.running)
        tokens = torch.empty(steps, num_seqs, dtype=torch.long, device=self.runner.device)
        non_finite = torch.empty(steps, num_seqs, dtype=torch.bool, device=self.runner.device)
        for number in range(steps):
            self.step(num_seqs, length)
            tokens[number] = self.batch.token[:num_seqs]
            non_finite[number] = self.batch.non_finite[:num_seqs]
        for sequence in self.running:
            if sequence is not None:
                sequence.num_scheduled += steps
        return StepBlock(list(self.running), *_to_host(tokens, non_finite))

    def _collect(self, block: StepBlock) -> Iterator[tuple[int, GenerateResponse]]:
        """Hand the tokens of a block to their sequences; free the slots of the finished ones."""
        if block.ready is not None:
            block.ready.synchronize()
        tokens, non_finite = block.tokens.T.tolist(), block.non_finite.T.tolist()
        for slot, sequence in enumerate(block.sequences):
            if sequence is None or sequence.finished:
                continue
            response = sequence.append(tokens[slot], non_finite[slot])
            if response is not None:
                self.running[self.running.index(sequence)] = None
                yield sequence.index, response

    def _schedule(self) -> Iterator[StepBlock]:
        """Fill free slots from the queue, several at once, because one prompt costs nearly as much."""
        size = self.batch.cache.num_slots
        free = [slot for slot in range(size) if slot >= len(self.running) or self.running[slot] is None]
        if len(free) < size and len(free) < size / 8:
            return
        while free and self.waiting:
            scheduled = self._next_prefill(len(free))
            slots, free = free[: len(scheduled)], free[len(scheduled) :]
            yield self._prefill_into(slots, scheduled)
            for slot, sequence in zip(slots, scheduled, strict=True):
                self.running.extend([None] * (slot + 1 - len(self.running)))
                self.running[slot] = sequence

    def _next_prefill(self, limit: int) -> list[SequenceState]:
        """Take up to `limit` sequences from the queue that fit into one prefill pass."""
        scheduled = [self.waiting.popleft()]
        unshared, shared = scheduled[0].num_unshared, scheduled[0].num_shared
        while self.waiting and len(scheduled) < limit and self.waiting[0].group is scheduled[0].group:
            unshared = max(unshared, self.waiting[0].num_unshared)
            shared = max(shared, self.waiting[0].num_shared)
            # Shared tokens cost only the copy of their keys and values, about a quarter of a token's memory.
            if (unshared + shared // 4) * (len(scheduled) + 1) > self.max_prefill_tokens:
                break
            scheduled.append(self.waiting.popleft())
        return scheduled

    def _prefill(self, scheduled: list[SequenceState]) -> tuple[Tensor, KVCache]:
        """Prefill prompts; return the last hidden state [R, width] and the cache of each row."""
        shared = [sequence.num_shared for sequence in scheduled]
        parent, parent_rows = None, None
        if shared[0]:
            parent = self._prefix_state(scheduled[0].group).truncate(shared)
            parent_rows = range(len(shared))
        rows = [sequence.request.prompt[sequence.num_shared :] for sequence in scheduled]
        hidden, cache = self.runner.prefill(rows, parent=parent, parent_rows=parent_rows, keep=True)
        assert cache is not None
        last = to_device(np.array([each.num_unshared - 1 for each in scheduled]), hidden.device)
        if len(set(shared)) > 1:
            cache = cache.compact()
        return hidden[torch.arange(len(rows), device=hidden.device), last], cache

    def _prefix_state(self, group: PrefixGroup) -> KVCache:
        """The cache after a group's prefix; the most recent one is retained."""
        if self._prefix[0] is not group:
            self._prefix = group, self.runner.prefill([group.tokens], keep=True)[1]
        assert self._prefix[1] is not None
        return self._prefix[1]

    def _prefill_into(self, slots: list[int], scheduled: list[SequenceState]) -> StepBlock:
        """Start to prefill the prompts into `slots` and to sample each sequence's first token."""
        requests = [sequence.request for sequence in scheduled]
        last, cache = self._prefill(scheduled)
        self.batch.cache.write(slots, cache)
        sampling = SamplingMetadata.from_requests(requests, last.device)
        num_generated = torch.zeros_like(cache.lengths)
        tokens, non_finite = sample(self.runner.head.logits(last), sampling, num_generated)
        target = to_device(np.array(slots), last.device)
        # As after a step: a prompt whose first token is its last one can fill the slot.
        position = cache.lengths.clamp(max=self.batch.cache.capacity - 1)
        new = [tokens, position, num_generated + 1, non_finite, *sampling.tensors()]
        for stored, value in zip(self.batch.tensors(), new, strict=True):
            stored[target] = value
        for sequence in scheduled:
            sequence.num_scheduled = 1
        return StepBlock(list(scheduled), *_to_host(tokens[None], non_finite[None]))

    def _compact(self) -> None:
        """Move the last sequences into the slots of finished ones, once a quarter of the slots is idle."""
        while self.running and self.running[-1] is None:
            self.running.pop()
        holes = [slot for slot, sequence in enumerate(self.running) if sequence is None]
        if self.waiting or len(holes) < len(self.running) / 4:
            return
        size = len(self.running) - len(holes)
        sources = [slot for slot in range(size, len(self.running)) if self.running[slot] is not None]
        targets = holes[: len(sources)]
        if sources:
            self.batch.cache.copy(sources, targets)
            source = to_device(np.array(sources), self.runner.device)
            target = to_device(np.array(targets), self.runner.device)
            for tensor in self.batch.tensors():
                tensor[target] = tensor[source]
            for old, new in zip(sources, targets, strict=True):
                self.running[new] = self.running[old]
        del self.running[size:]


def _order_by_prefix(waiting: Sequence[SequenceState], *, allow_partial: bool) -> list[SequenceState]:
    """Order sequences so that a prefix group is contiguous, those with most unshared tokens first."""
    ordered = []
    for group in build_prefix_groups([seq.request.prompt for seq in waiting], allow_partial=allow_partial):
        for number, shared in group.shared_lengths.items():
            waiting[number].group, waiting[number].num_shared = group, shared
        members = [waiting[number] for number in group.shared_lengths]
        if group.tokens:
            members.sort(key=lambda seq: -seq.num_unshared)
        ordered.append(members)
    ordered.sort(key=lambda members: -max(len(seq.request.prompt) for seq in members))
    return [sequence for members in ordered for sequence in members]


def _to_host(tokens: Tensor, non_finite: Tensor) -> tuple[Tensor, Tensor, torch.cuda.Event | None]:
    """Start asynchronous copies to the host; the event is set when they are complete."""
    if not tokens.is_cuda:
        return tokens, non_finite, None
    copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in (tokens, non_finite)]
    for copy, tensor in zip(copies, (tokens, non_finite), strict=True):
        copy.copy_(tensor, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return copies[0], copies[1], ready

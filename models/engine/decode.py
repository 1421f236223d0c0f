"""Writing answers: ragged rows step together, finished rows leave, waiting prompts enter."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.engine.attention import Masks
from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.prefixes import Trunk, trunks
from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest
from evalsuite.models.engine.sampling import Choice, choose
from evalsuite.models.engine.slots import Slots
from evalsuite.models.engine.states import State
from evalsuite.models.engine.stops import Ending

NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
LENGTH_STEP = 64
"""Keys are looked at in multiples of this, so that a captured step serves many lengths."""

NO_TRUNK = Trunk((), {})

StepFunction = Callable[[int, int], None]


class Rows:
    """Device memory of the rows that decode together: slots, and what each row does next."""

    def __init__(self, decoder: Decoder, sample: State, choice: Choice, rows: int, capacity: int) -> None:
        self.decoder = decoder
        self.slots = Slots(sample, rows, capacity)
        self.choice = choice
        device = decoder.device
        self.token = torch.zeros(rows, dtype=torch.long, device=device)
        self.position = torch.zeros(rows, dtype=torch.long, device=device)
        self.written = torch.zeros(rows, dtype=torch.long, device=device)
        self.broken = torch.zeros(rows, dtype=torch.bool, device=device)

    def tensors(self) -> list[Tensor]:
        """Everything that belongs to a row, apart from its slot."""
        choice = self.choice
        return [
            self.token,
            self.position,
            self.written,
            self.broken,
            choice.temperature,
            choice.top_p,
            choice.top_k,
            choice.streams,
        ]

    def step(self, rows: int, length: int) -> None:
        """Read one token in each of the first `rows` rows and choose the next; all in place.

        Args:
            rows: number of rows.
            length: above the position of every row that is still of interest.
        """
        position = self.position[:rows]
        columns, every = self.slots.columns[None, :length], self.slots.every[None, :length]
        masks = Masks(position[:, None], columns, every, self.decoder.dtype)
        cache = self.slots.view(rows, length, position)
        hidden = self.decoder.call(self.token[:rows, None], position[:, None], cache, masks)
        tokens, broken = choose(self.decoder.head(hidden[:, 0]), self.choice.first(rows), self.written[:rows])
        self.token[:rows].copy_(tokens)
        self.broken[:rows].logical_or_(broken)
        self.written[:rows].add_(1)
        # A row that has ended may run on until the host looks; it must not run out of its slot.
        position.add_(1).clamp_(max=self.slots.capacity - 1)


@dataclass(slots=True, eq=False)
class _Live:
    """An answer in the making. `due` counts the tokens that were launched, whether looked at or not."""

    index: int
    request: GenerateRequest
    ending: Ending
    trunk: Trunk = NO_TRUNK
    shared: int = 0
    """Tokens of the trunk that its prompt begins with."""
    due: int = 0
    ended: bool = False

    @property
    def own(self) -> int:
        """Tokens of its prompt that are read for it alone."""
        return len(self.request.prompt) - self.shared

    def take(self, tokens: list[int], broken: list[bool]) -> GenerateAnswer | None:
        """Take new tokens, up to the first that came from logits that are not finite."""
        good = tokens[: broken.index(True)] if any(broken) else tokens
        answer = self.ending.extend(good)
        if answer is None and len(good) < len(tokens):
            answer = GenerateAnswer.failed(NOT_FINITE)
        self.ended = answer is not None
        return answer


@dataclass(slots=True)
class _Block:
    """Steps that were launched: who sat in which slot, and tokens and broken flags [count, rows]."""

    live: list[_Live | None]
    tokens: Tensor
    broken: Tensor
    done: torch.cuda.Event | None


class Session:
    """Generates answers for some requests in a fixed number of slots.

    Tokens are looked at in blocks of steps. On a GPU the next block is launched before the last one is
    looked at, so that the device never waits for the host; a row that has ended then runs on for a
    block more, and what it writes is ignored.

    Args:
        decoder, tokenizer, eos: the model's parts.
        requests: (index, request, limit) in the order in which they enter, the longest first; limit is
            the most tokens that may be written.
        rows: slots; capacity: tokens per slot.
        budget: most padded tokens in one pass over prompts.
        block: steps between two looks at the tokens from the host.
        ahead: blocks that are launched before the last one is looked at.
        stepper: makes the step function of the rows (eager, or CUDA graphs).
        share: read what prompts begin with in common once, and let these prompts follow one another.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Any,
        eos: frozenset[int],
        requests: Sequence[tuple[int, GenerateRequest, int]],
        *,
        rows: int,
        capacity: int,
        budget: int,
        block: int,
        ahead: int,
        stepper: Callable[[Rows], StepFunction],
        share: bool = False,
    ) -> None:
        self.decoder = decoder
        waiting = [
            _Live(index, request, Ending(tokenizer, request.sampling, limit, eos))
            for index, request, limit in requests
        ]
        self.waiting = deque(_together(waiting, cut=not decoder.row_bytes) if share else waiting)
        self._trunk: tuple[Trunk, State | None] = NO_TRUNK, None
        self.budget = budget
        self.block, self.ahead = block, ahead
        self.live: list[_Live | None] = []
        asked = [live.request for live in self.waiting]
        _, sample = decoder.read([asked[0].prompt[:1]], keep=True)
        assert sample is not None
        choice = Choice.greedy(rows, asked, decoder.device)
        self.rows = Rows(decoder, sample, choice, rows, capacity)
        self.step = stepper(self.rows)

    def answers(self) -> Iterator[tuple[int, GenerateAnswer]]:
        """Yield (index, answer) as rows end."""
        launched: deque[_Block] = deque()
        while True:
            yield from self._admit()
            block = self._launch()
            if block is not None:
                launched.append(block)
            elif not launched and not self.waiting:
                return
            while len(launched) > (self.ahead if block is not None else 0):
                yield from self._look(launched.popleft())
            self._compact()

    def _launch(self) -> _Block | None:
        """Start a block of steps, unless every row already has all the tokens it may write."""
        unfinished = [live for live in self.live if live is not None and live.due < live.ending.limit]
        if not unfinished:
            return None
        count = min(self.block, max(live.ending.limit - live.due for live in unfinished))
        longest = max(len(live.request.prompt) + live.due for live in unfinished)
        length = min(-(-(longest + count) // LENGTH_STEP) * LENGTH_STEP, self.rows.slots.capacity)
        rows = len(self.live)
        tokens = torch.empty(count, rows, dtype=torch.long, device=self.decoder.device)
        broken = torch.empty(count, rows, dtype=torch.bool, device=self.decoder.device)
        for number in range(count):
            self.step(rows, length)
            tokens[number] = self.rows.token[:rows]
            broken[number] = self.rows.broken[:rows]
        for live in self.live:
            if live is not None:
                live.due += count
        return _Block(list(self.live), *_to_host(tokens, broken))

    def _look(self, block: _Block) -> Iterator[tuple[int, GenerateAnswer]]:
        """Give the tokens of a block to their answers; free the slots of those that ended."""
        if block.done is not None:
            block.done.synchronize()
        tokens, broken = block.tokens.T.tolist(), block.broken.T.tolist()
        for slot, live in enumerate(block.live):
            if live is None or live.ended:
                continue
            answer = live.take(tokens[slot], broken[slot])
            if answer is not None:
                self.live[self.live.index(live)] = None
                yield live.index, answer

    def _admit(self) -> Iterator[tuple[int, GenerateAnswer]]:
        """Fill free slots from the queue, many at a time: a pass over one prompt costs nearly as much."""
        size = self.rows.slots.rows
        free = [slot for slot in range(size) if slot >= len(self.live) or self.live[slot] is None]
        if len(free) < size and len(free) < size / 8:
            return
        while free and self.waiting:
            entering = self._next(len(free))
            chosen, free = free[: len(entering)], free[len(entering) :]
            for slot, live, answer in zip(chosen, entering, self._enter(chosen, entering), strict=True):
                if answer is not None:
                    free.append(slot)
                    yield live.index, answer
                else:
                    self.live.extend([None] * (slot + 1 - len(self.live)))
                    self.live[slot] = live

    def _next(self, most: int) -> list[_Live]:
        """Take at most `most` from the queue that can be read in one pass."""
        entering = [self.waiting.popleft()]
        own, shared = entering[0].own, entering[0].shared
        while self.waiting and len(entering) < most and self.waiting[0].trunk is entering[0].trunk:
            own, shared = max(own, self.waiting[0].own), max(shared, self.waiting[0].shared)
            # Of what is shared only keys and values are copied, a part of what a token needs otherwise.
            if (own + shared // 4) * (len(entering) + 1) > self.budget:
                break
            entering.append(self.waiting.popleft())
        return entering

    def _read(self, entering: list[_Live]) -> tuple[Tensor, State]:
        """Read prompts; return the last hidden state [R, width] and what each row remembers."""
        shares = [live.shared for live in entering]
        parent, parents = None, None
        if shares[0]:
            parent, parents = self._grown(entering[0].trunk).cut(shares), range(len(shares))
        own = [live.request.prompt[live.shared :] for live in entering]
        hidden, state = self.decoder.read(own, parent=parent, parents=parents, keep=True)
        assert state is not None
        last = torch.tensor([live.own - 1 for live in entering], device=hidden.device)
        if len(set(shares)) > 1:
            state = state.closed()
        return hidden[torch.arange(len(own), device=hidden.device), last], state

    def _grown(self, trunk: Trunk) -> State:
        """The state after a trunk; that of the last one is kept."""
        if self._trunk[0] is not trunk:
            self._trunk = trunk, self.decoder.read([trunk.tokens], keep=True)[1]
        assert self._trunk[1] is not None
        return self._trunk[1]

    def _enter(self, chosen: list[int], entering: list[_Live]) -> list[GenerateAnswer | None]:
        """Read the prompts into slots `chosen` and choose each row's first token."""
        requests = [live.request for live in entering]
        last, state = self._read(entering)
        self.rows.slots.load(chosen, state)
        choice = Choice.of(requests, last.device)
        written = torch.zeros_like(state.lengths)
        tokens, broken = choose(self.decoder.head(last), choice, written)
        into = torch.tensor(chosen, device=last.device)
        fresh = [tokens, state.lengths, written + 1, broken]
        fresh += [choice.temperature, choice.top_p, choice.top_k, choice.streams]
        for mine, new in zip(self.rows.tensors(), fresh, strict=True):
            mine[into] = new
        for live in entering:
            live.due = 1
        pairs = zip(entering, tokens.tolist(), broken.tolist(), strict=True)
        return [live.take([token], [bad]) for live, token, bad in pairs]

    def _compact(self) -> None:
        """Let the last rows take the place of ended ones, once a quarter of the rows is idle."""
        while self.live and self.live[-1] is None:
            self.live.pop()
        holes = [slot for slot, live in enumerate(self.live) if live is None]
        if self.waiting or len(holes) < len(self.live) / 4:
            return
        kept = len(self.live) - len(holes)
        sources = [slot for slot in range(kept, len(self.live)) if self.live[slot] is not None]
        targets = holes[: len(sources)]
        if sources:
            self.rows.slots.move(sources, targets)
            source = torch.tensor(sources, device=self.decoder.device)
            target = torch.tensor(targets, device=self.decoder.device)
            for tensor in self.rows.tensors():
                tensor[target] = tensor[source]
            for old, new in zip(sources, targets, strict=True):
                self.live[new] = self.live[old]
        del self.live[kept:]


def _together(waiting: Sequence[_Live], *, cut: bool) -> list[_Live]:
    """Let prompts that share a trunk follow one another, those with most to read of their own first."""
    ordered = []
    for trunk in trunks([live.request.prompt for live in waiting], cut=cut):
        for number, shared in trunk.shares.items():
            waiting[number].trunk, waiting[number].shared = trunk, shared
        lives = [waiting[number] for number in trunk.shares]
        if trunk.tokens:
            lives.sort(key=lambda live: -live.own)
        ordered.append(lives)
    ordered.sort(key=lambda lives: -max(len(live.request.prompt) for live in lives))
    return [live for lives in ordered for live in lives]


def _to_host(tokens: Tensor, broken: Tensor) -> tuple[Tensor, Tensor, torch.cuda.Event | None]:
    """Start copying to the host without waiting; the event says when the copies are there."""
    if not tokens.is_cuda:
        return tokens, broken, None
    copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in (tokens, broken)]
    for copy, tensor in zip(copies, (tokens, broken), strict=True):
        copy.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return copies[0], copies[1], done

"""The in-process engine: teachers, hybrids and recurrent students, on a CPU or a GPU."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
import transformers

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints import Checkpoint
from evalsuite.models.engine.decode import LENGTH_STEP, Session
from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.graphs import eager, graphed
from evalsuite.models.engine.memory import Sizes, sizes
from evalsuite.models.engine.requests import (
    REFUSED,
    GenerateAnswer,
    GenerateRequest,
    ScoreAnswer,
    ScoreRequest,
)
from evalsuite.models.engine.scoring import ScoredBatch, plan_rest
from evalsuite.models.engine.stops import eos_ids
from evalsuite.models.identity import fingerprint
from evalsuite.models.recurrence import fla_backend, using_fla
from evalsuite.models.student import StudentForCausalLM

NUMERICS = {"cuda": "2", "cpu": "4"}
"""Goes up when answers change by rounding: those of another number are not reused."""


class TorchEngine:
    """Answers requests with a loaded checkpoint.

    Args:
        checkpoint: model (any device and dtype) and tokenizer.
        max_length: most positions read; None takes the config's `max_position_embeddings`.
        batch_tokens: padded tokens in one forward pass; None chooses from device and free memory.

    Raises:
        ConfigError: the model cannot be run by its parts, or `max_length` is not positive.
    """

    name = "torch"

    def __init__(
        self, checkpoint: Checkpoint, *, max_length: int | None = None, batch_tokens: int | None = None
    ) -> None:
        self.checkpoint = checkpoint
        model = checkpoint.model.eval()
        self.max_length = max_length or _positions(model)
        if self.max_length < 1:
            raise ConfigError(f"max_length = {max_length}: must be positive")
        self.decoder = Decoder(model)
        self.eos = eos_ids(model.config, checkpoint.tokenizer, model.generation_config)
        self.sizes: Sizes = sizes(self.decoder, model.num_parameters(), batch_tokens)
        on_gpu = self.decoder.device.type == "cuda"
        self.block, self.ahead = (8, 1) if on_gpu else (1, 0)
        # On a GPU the masks that this takes cost the fused attention, and reading is a small part.
        self.share = not on_gpu

    @cached_property
    def versions(self) -> dict[str, str]:
        """What decides about rounding: device, dtype, and the versions of what computes."""
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        versions["numerics"] = NUMERICS.get(self.decoder.device.type, "1")
        if isinstance(self.checkpoint.model, StudentForCausalLM):
            on_fla = using_fla(torch.empty(0, dtype=self.decoder.dtype, device=self.decoder.device))
            versions["recurrence"] = fla_backend.version() if on_fla else "torch"
        dtype = str(self.decoder.dtype).removeprefix("torch.")
        return {"device": self.decoder.device.type, "dtype": dtype, **versions}

    @cached_property
    def fingerprint(self) -> str:
        """See `Engine.fingerprint`."""
        versions = dict(self.versions)
        engine = f"torch/{versions.pop('device')}"
        return fingerprint(self.checkpoint.weights_id, versions.pop("dtype"), engine, versions)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreAnswer]]:
        """See `Engine.score`: batches of similar length, the longest first.

        Raises:
            torch.OutOfMemoryError: a single request does not fit.
        """
        return self.score_rest(requests, ())

    def score_rest(
        self, requests: Sequence[ScoreRequest], known: Collection[int]
    ) -> Iterator[tuple[int, ScoreAnswer]]:
        """See `Resumable.score_rest`; raises as `score`."""
        known = set(known)
        for index, answer in self._scored(requests, known):
            if index not in known:
                yield index, answer

    @torch.inference_mode()
    def _scored(
        self, requests: Sequence[ScoreRequest], known: Collection[int]
    ) -> Iterator[tuple[int, ScoreAnswer]]:
        runnable: list[int] = []
        for index, request in enumerate(requests):
            tokens = (request.context, *request.continuations)
            refusal = request.refusal(self.max_length) or self._foreign(tokens)
            if refusal is not None:
                yield index, ScoreAnswer.failed(refusal)
            else:
                runnable.append(index)
        waiting = plan_rest(requests, runnable, known, self.sizes)
        started: deque[tuple[list[int], ScoredBatch]] = deque()
        while waiting:
            batch = waiting[0]
            scored = shortage = None
            try:
                asked = [requests[number] for number in batch.numbers]
                scored = ScoredBatch(self.decoder, asked, self.sizes, batch.shared)
            except torch.OutOfMemoryError as error:
                shortage = error.with_traceback(None)
            if scored is None:
                # What was started before is answered first: it must not be lost, and it holds memory.
                while started:
                    yield from _collected(*started.popleft())
                if len(batch.numbers) == 1 and shortage is not None:
                    raise shortage
                waiting[:1] = batch.halves()
                _free()
                continue
            del waiting[0]
            started.append((batch.numbers, scored))
            while len(started) > self.ahead:
                yield from _collected(*started.popleft())
        while started:
            yield from _collected(*started.popleft())

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateAnswer]]:
        """See `Engine.generate`: ragged rows in static slots, the longest first.

        Raises:
            torch.OutOfMemoryError: a single request does not fit.
        """
        waiting: dict[int, GenerateRequest] = {}
        for index, request in enumerate(requests):
            refusal = request.refusal(self.max_length) or self._foreign([request.prompt])
            if refusal is not None:
                yield index, GenerateAnswer.failed(refusal)
            else:
                waiting[index] = request
        most = self.sizes.rows
        session: Session | None = None
        while waiting:
            try:
                session = self._session(waiting, most)
                for index, answer in session.answers():
                    del waiting[index]
                    yield index, answer
            except torch.OutOfMemoryError:
                if most == 1:
                    raise
                most = max(1, min(most, len(waiting)) // 2)
            session = None
            _free()

    def _session(self, waiting: dict[int, GenerateRequest], most: int) -> Session:
        """A session for all requests; if they do not fit together, for the longest of them."""
        limits = {index: request.limit(self.max_length) for index, request in waiting.items()}
        # The last token of an answer is written, never read.
        needs = {index: len(request.prompt) + limits[index] - 1 for index, request in waiting.items()}
        order = sorted(waiting, key=lambda index: -needs[index])
        capacity = -(-needs[order[0]] // LENGTH_STEP) * LENGTH_STEP
        row_bytes = capacity * self.decoder.token_bytes + self.decoder.row_bytes
        rows = min(most, max(1, self.sizes.state_bytes // max(1, row_bytes)))
        if rows < min(most, len(order)):
            order = [index for index in order if needs[index] > capacity // 2]
        return Session(
            self.decoder,
            self.checkpoint.tokenizer,
            self.eos,
            [(index, waiting[index], limits[index]) for index in order],
            rows=min(rows, len(order)),
            capacity=capacity,
            budget=self.sizes.tokens,
            block=self.block,
            ahead=self.ahead,
            stepper=graphed if self.decoder.device.type == "cuda" else eager,
            share=self.share,
        )

    def _foreign(self, tokens: Sequence[Sequence[int]]) -> str | None:
        """Refuse ids that the embedding does not have; on a GPU they would end the process."""
        worst = max(max(ids, default=0) for ids in tokens)
        if worst < self.decoder.vocabulary and min(min(ids, default=0) for ids in tokens) >= 0:
            return None
        return REFUSED + f"token id {worst} is outside the model's vocabulary of {self.decoder.vocabulary}"


def _positions(model: Any) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not positions:
        raise ConfigError(
            f"{type(model).__name__}: the config has no max_position_embeddings; pass max_length"
        )
    return int(positions)


def _collected(indices: list[int], batch: ScoredBatch) -> Iterator[tuple[int, ScoreAnswer]]:
    yield from zip(indices, batch.answers(), strict=True)


def _free() -> None:
    """Give cached blocks back, so that the next, smaller attempt is not stopped by fragments."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

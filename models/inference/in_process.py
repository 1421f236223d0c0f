"""What engines share that run a loaded checkpoint in this process: validation, batches that fit, identity."""

from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property

import torch
import transformers

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.fingerprint import STUDENT_SOURCE, fingerprint, plugin_versions, source_hash
from evalsuite.models.checkpoints.load import Checkpoint, remote_code_hash
from evalsuite.models.checkpoints.positions import check_max_length, max_positions
from evalsuite.models.decoder import StudentForCausalLM
from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.batching import RequestBatch, make_remaining_batches
from evalsuite.models.inference.logprobs import ScoredBatch
from evalsuite.models.inference.registry import EngineType
from evalsuite.models.inference.requests import (
    INVALID_PREFIX,
    GenerateRequest,
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
    split_valid,
)
from evalsuite.models.inference.stopping import StopChecker, eos_token_ids
from evalsuite.models.ops.dispatch import kernel_versions

SOURCE = (
    *(f"inference/{name}.py" for name in ("batch_limits", "batching", "in_process")),
    *(f"inference/{name}.py" for name in ("logprobs", "sampling", "stopping")),
    *(f"ops/{name}" for name in ("dispatch.py", "logprobs", "numerics.py")),
    "checkpoints/tokenizers.py",
)
"""Our code that computes the responses of every engine in this process."""


class InProcessEngine(EngineType):
    """Runs requests on a loaded checkpoint, in batches that are halved where memory is short.

    An engine sets `limits` and `vocab_size`, and computes batches: `_score_batches`, `_start` and
    `_generate`.

    Args:
        checkpoint: model (any device and dtype) and tokenizer.
        max_length: maximum number of positions; None uses the config's, if it states any.

    Raises:
        ConfigError: `max_length` is not positive or beyond the model's positions, or the engine cannot round
            weights or states as the checkpoint says.
    """

    extends_positions = True
    source: tuple[str, ...] = SOURCE
    """Our code that computes the responses; the fingerprint covers it."""
    limits: BatchLimits
    vocab_size: int
    lookahead = 0
    """Batches of log-likelihoods that are started before the last one is collected."""

    def __init__(self, checkpoint: Checkpoint, *, max_length: int | None = None) -> None:
        if checkpoint.precision and not self.rounds:
            raise ConfigError(
                f"{checkpoint.label}: engine {self.name} does not round weights or states "
                f"({checkpoint.precision}); engine torch does, where it can run the model"
            )
        self.checkpoint = checkpoint
        model = checkpoint.model.eval()
        stated = max_positions(model.config)
        self.max_length = stated if max_length is None else max_length
        if self.max_length < 1:
            raise ConfigError(f"max_length = {max_length}: must be positive")
        check_max_length(model.config, self.max_length)
        self._extended = self.max_length > stated
        self.eos_ids = eos_token_ids(model.config, checkpoint.tokenizer, model.generation_config)

    @abstractmethod
    def _score_batches(self, requests: Sequence[ScoreRequest], indices: Sequence[int]) -> list[RequestBatch]:
        """Batches of these requests, the largest first."""

    @abstractmethod
    def _start(self, requests: Sequence[ScoreRequest], batch: RequestBatch) -> ScoredBatch:
        """Start to compute a batch."""

    @abstractmethod
    def _generate(
        self, requests: Mapping[int, GenerateRequest], max_num_seqs: int
    ) -> Iterator[tuple[int, GenerateResponse]]:
        """Respond to some of the requests at least, up to `max_num_seqs` at a time."""

    @property
    def label(self) -> str:
        return self.checkpoint.label

    @property
    def weights_id(self) -> str:
        return self.checkpoint.weights_id

    @cached_property
    def versions(self) -> dict[str, str]:
        """Device, dtype, package versions and our own source: everything that affects rounding."""
        model = self.checkpoint.model
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        is_ours = isinstance(model, StudentForCausalLM)
        versions["source"] = source_hash(*self.source, *(STUDENT_SOURCE if is_ours else ()))
        if is_ours:
            versions |= plugin_versions(model.config)
            versions["recurrence"] = kernel_versions(model.device, model.dtype) or "torch"
        if (code := remote_code_hash(model)) is not None:
            versions["remote_code"] = code
        if self._extended:
            versions["max_length"] = str(self.max_length)
        dtype = str(model.dtype).removeprefix("torch.")
        return {"device": model.device.type, "dtype": dtype, **versions}

    @cached_property
    def fingerprint(self) -> str:
        versions = dict(self.versions)
        engine = f"{self.name}/{versions.pop('device')}"
        return fingerprint(self.checkpoint.weights_id, versions.pop("dtype"), engine, versions)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        """Batches of similar length, the longest first.

        Raises:
            torch.OutOfMemoryError: a single request does not fit.
        """
        return self.score_remaining(requests, ())

    @torch.inference_mode()
    def score_remaining(
        self, requests: Sequence[ScoreRequest], completed: Collection[int]
    ) -> Iterator[tuple[int, ScoreResponse]]:
        """Raises as `score`."""
        completed = set(completed)
        for index, response in self._score(requests, completed):
            if index not in completed:
                yield index, response

    def _score(
        self, requests: Sequence[ScoreRequest], completed: Collection[int]
    ) -> Iterator[tuple[int, ScoreResponse]]:
        valid, refused = split_valid(
            requests,
            lambda request: (
                request.validation_error(self.max_length)
                or self._out_of_vocabulary((request.context, *request.continuations))
            ),
        )
        for index, error in refused:
            yield index, ScoreResponse.from_error(error)
        waiting = make_remaining_batches(
            valid, completed, lambda indices: self._score_batches(requests, indices)
        )
        started: deque[tuple[Sequence[int], ScoredBatch]] = deque()
        while waiting:
            batch = waiting[0]
            running = out_of_memory = None
            try:
                running = self._start([requests[index] for index in batch.indices], batch)
            except torch.OutOfMemoryError as error:
                out_of_memory = error.with_traceback(None)
            if running is None:
                # Collect the batches in flight first: they must not be lost, and they hold memory.
                while started:
                    yield from _collect(*started.popleft())
                if not self._release():
                    if len(batch.indices) == 1 and out_of_memory is not None:
                        raise out_of_memory
                    waiting[:1] = batch.halves()
                _release_cached_memory()
                continue
            del waiting[0]
            started.append((batch.indices, running))
            while len(started) > self.lookahead:
                yield from _collect(*started.popleft())
        while started:
            yield from _collect(*started.popleft())

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        """The longest first.

        Raises:
            torch.OutOfMemoryError: a single request does not fit.
        """
        valid, refused = split_valid(
            requests,
            lambda request: (
                request.validation_error(self.max_length) or self._out_of_vocabulary([request.prompt])
            ),
        )
        for index, error in refused:
            yield index, GenerateResponse.from_error(error)
        waiting = {index: requests[index] for index in valid}
        max_num_seqs = self.limits.max_num_seqs
        while waiting:
            try:
                for index, response in self._generate(waiting, max_num_seqs):
                    del waiting[index]
                    yield index, response
            except torch.OutOfMemoryError:
                self._release()
                if max_num_seqs == 1:
                    raise
                max_num_seqs = max(1, min(max_num_seqs, len(waiting)) // 2)
            if waiting or not self._keeps_memory:
                _release_cached_memory()

    @property
    def batch_limits(self) -> Mapping[str, int]:
        return asdict(self.limits)

    def restore_batch_limits(self, limits: Mapping[str, int], source: str) -> None:
        self.limits = BatchLimits.from_dict(limits, source)

    def _stop_checker(self, request: GenerateRequest) -> StopChecker:
        limit = request.token_limit(self.max_length)
        return StopChecker(self.checkpoint.tokenizer, request.sampling, limit, self.eos_ids)

    def close(self) -> None:
        """The model's memory is freed with the engine."""
        self._release()

    @property
    def _keeps_memory(self) -> bool:
        """Whether blocks that a generation has used stay cached for the next one."""
        return False

    def _release(self) -> bool:
        """Free what is kept from one call to the next; return whether there was anything."""
        return False

    def _out_of_vocabulary(self, tokens: Sequence[Sequence[int]]) -> str | None:
        """Error for ids without an embedding; on a GPU they would abort the process."""
        highest = max(max(ids, default=0) for ids in tokens)
        if highest < self.vocab_size and min(min(ids, default=0) for ids in tokens) >= 0:
            return None
        return INVALID_PREFIX + f"token id {highest} is outside the model's vocabulary of {self.vocab_size}"


def _collect(indices: Sequence[int], batch: ScoredBatch) -> Iterator[tuple[int, ScoreResponse]]:
    yield from zip(indices, batch.responses(), strict=True)


def _release_cached_memory() -> None:
    """Return cached blocks to the device, so that fragmentation does not fail the next, smaller attempt."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

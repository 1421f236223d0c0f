"""The in-process engine: teachers, hybrids and recurrent students, on a CPU or a GPU."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import transformers

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints import Checkpoint, load_checkpoint
from evalsuite.models.fingerprint import STUDENT_SOURCE, fingerprint, plugin_versions, source_hash
from evalsuite.models.inference.positions import check_max_length, stated_positions
from evalsuite.models.inference.registry import ENGINES, EngineSettings, EngineType
from evalsuite.models.inference.requests import (
    INVALID_PREFIX,
    GenerateRequest,
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
)
from evalsuite.models.inference.stopping import eos_token_ids
from evalsuite.models.inference.torch.batch_limits import BatchLimits, compute_batch_limits
from evalsuite.models.inference.torch.cuda_graphs import cuda_graph_step, eager_step
from evalsuite.models.inference.torch.loglikelihood import LoglikelihoodBatch, make_remaining_batches
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import KEY_BLOCK, GenerationScheduler
from evalsuite.models.inference.torch.verify_cache import refuse_unsupported, verify_cache
from evalsuite.models.recurrence import fla_backend, use_triton
from evalsuite.models.student import StudentForCausalLM

if TYPE_CHECKING:
    from evalsuite.models.benchmark.subject import Benchmark
    from evalsuite.models.runtime_estimate import TokenTimes

SOURCE = ("inference/torch", "inference/stopping.py")
"""Our code that computes the responses of every model; the fingerprint covers it."""


@ENGINES.register("torch")
class TorchEngine(EngineType):
    """Runs requests on a loaded checkpoint.

    Args:
        checkpoint: model (any device and dtype) and tokenizer.
        max_length: maximum number of positions; None uses the config's `max_position_embeddings`.
        batch_tokens: padded tokens in one forward pass; None chooses by device and free memory.

    Raises:
        ConfigError: decoder and head of the model cannot be run separately, its state is not carried from one
            part of a text to the next, or `max_length` is not positive or beyond its positions.
    """

    display_name = "torch"
    extends_positions = True

    def __init__(
        self, checkpoint: Checkpoint, *, max_length: int | None = None, batch_tokens: int | None = None
    ) -> None:
        self.checkpoint = checkpoint
        model = checkpoint.model.eval()
        self.max_length = max_length or _max_positions(model)
        if self.max_length < 1:
            raise ConfigError(f"max_length = {max_length}: must be positive")
        check_max_length(model.config, self.max_length)
        with refuse_unsupported(model):
            self.runner = ModelRunner(model)
            verify_cache(self.runner, model)
        self.eos_ids = eos_token_ids(model.config, checkpoint.tokenizer, model.generation_config)
        self.limits = compute_batch_limits(self.runner, model.num_parameters(), batch_tokens)
        on_gpu = self.runner.device.type == "cuda"
        self.steps_per_block, self.lookahead = (8, 1) if on_gpu else (1, 0)
        # On a GPU the masks that shared prefixes need rule out fused attention, and prefill is a small part.
        self.share_prefixes = not on_gpu

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> "TorchEngine":
        """See `EngineType.open`: loads the checkpoint."""
        checkpoint = load_checkpoint(
            path,
            dtype=settings.dtype,
            device=settings.device,
            trust_remote_code=settings.trust_remote_code,
            label=settings.label,
        )
        return cls(checkpoint, max_length=settings.max_length)

    @classmethod
    def token_times(
        cls,
        config: Any,
        tokenizer: Any,
        settings: EngineSettings,
        *,
        parameters: int,
        prompt_tokens: int,
        num_responses: int,
    ) -> "TokenTimes":
        """See `EngineType.token_times`: times a few layers of the model."""
        from evalsuite.models.runtime_estimate import measure_token_times

        return measure_token_times(
            config,
            tokenizer,
            device=settings.device,
            dtype=settings.dtype,
            parameters=parameters,
            prompt_tokens=prompt_tokens,
            num_responses=num_responses,
            trust_remote_code=settings.trust_remote_code,
        )

    @property
    def label(self) -> str:
        """See `EngineType.label`."""
        return self.checkpoint.label

    def benchmark(self) -> "Benchmark":
        """See `EngineType.benchmark`."""
        from evalsuite.models.benchmark.in_process import TorchBenchmark

        return TorchBenchmark(self.runner, self.checkpoint)

    @property
    def weights_id(self) -> str:
        """See `Engine.weights_id`."""
        return self.checkpoint.weights_id

    @cached_property
    def versions(self) -> dict[str, str]:
        """Device, dtype, package versions and our own source: everything that affects rounding."""
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        is_student = isinstance(self.checkpoint.model, StudentForCausalLM)
        versions["source"] = source_hash(*SOURCE, *(STUDENT_SOURCE if is_student else ()))
        if is_student:
            versions |= plugin_versions(self.checkpoint.model.config)
            triton = use_triton(torch.empty(0, dtype=self.runner.dtype, device=self.runner.device))
            versions["recurrence"] = fla_backend.version() if triton else "torch"
        stated = stated_positions(self.checkpoint.model.config)
        if stated is not None and self.max_length > stated:
            versions["max_length"] = str(self.max_length)
        dtype = str(self.runner.dtype).removeprefix("torch.")
        return {"device": self.runner.device.type, "dtype": dtype, **versions}

    @cached_property
    def fingerprint(self) -> str:
        """See `Engine.fingerprint`."""
        versions = dict(self.versions)
        engine = f"torch/{versions.pop('device')}"
        return fingerprint(self.checkpoint.weights_id, versions.pop("dtype"), engine, versions)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        """See `Engine.score`: batches of similar length, the longest first.

        Raises:
            torch.OutOfMemoryError: a single request does not fit.
        """
        return self.score_remaining(requests, ())

    def score_remaining(
        self, requests: Sequence[ScoreRequest], completed: Collection[int]
    ) -> Iterator[tuple[int, ScoreResponse]]:
        """See `ResumableEngine.score_remaining`; raises as `score`."""
        completed = set(completed)
        for index, response in self._score(requests, completed):
            if index not in completed:
                yield index, response

    @torch.inference_mode()
    def _score(
        self, requests: Sequence[ScoreRequest], completed: Collection[int]
    ) -> Iterator[tuple[int, ScoreResponse]]:
        valid: list[int] = []
        for index, request in enumerate(requests):
            tokens = (request.context, *request.continuations)
            error = request.validation_error(self.max_length) or self._out_of_vocabulary(tokens)
            if error is not None:
                yield index, ScoreResponse.from_error(error)
            else:
                valid.append(index)
        waiting = make_remaining_batches(requests, valid, completed, self.limits)
        started: deque[tuple[list[int], LoglikelihoodBatch]] = deque()
        while waiting:
            batch = waiting[0]
            running = out_of_memory = None
            try:
                batch_requests = [requests[index] for index in batch.indices]
                running = LoglikelihoodBatch(self.runner, batch_requests, self.limits, batch.num_shared)
            except torch.OutOfMemoryError as error:
                out_of_memory = error.with_traceback(None)
            if running is None:
                # Collect the batches in flight first: they must not be lost, and they hold memory.
                while started:
                    yield from _collect(*started.popleft())
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
        """See `Engine.generate`: continuous batching in static slots, the longest first.

        Raises:
            torch.OutOfMemoryError: a single request does not fit.
        """
        waiting: dict[int, GenerateRequest] = {}
        for index, request in enumerate(requests):
            error = request.validation_error(self.max_length) or self._out_of_vocabulary([request.prompt])
            if error is not None:
                yield index, GenerateResponse.from_error(error)
            else:
                waiting[index] = request
        max_num_seqs = self.limits.max_num_seqs
        scheduler: GenerationScheduler | None = None
        while waiting:
            try:
                scheduler = self._make_scheduler(waiting, max_num_seqs)
                for index, response in scheduler.responses():
                    del waiting[index]
                    yield index, response
            except torch.OutOfMemoryError:
                if max_num_seqs == 1:
                    raise
                max_num_seqs = max(1, min(max_num_seqs, len(waiting)) // 2)
            scheduler = None
            _release_cached_memory()

    @property
    def batch_limits(self) -> Mapping[str, int]:
        """See `MemoryBoundEngine.batch_limits`."""
        return asdict(self.limits)

    def restore_batch_limits(self, limits: Mapping[str, int], source: str) -> None:
        """See `MemoryBoundEngine.restore_batch_limits`."""
        self.limits = BatchLimits.from_dict(limits, source)

    def close(self) -> None:
        """See `Engine.close`: the model's memory is freed with the engine."""

    def _make_scheduler(self, waiting: dict[int, GenerateRequest], max_num_seqs: int) -> GenerationScheduler:
        """A scheduler for all requests; if their slots do not fit into memory, for the longest of them."""
        limits = {index: request.token_limit(self.max_length) for index, request in waiting.items()}
        # The last generated token is never read.
        needs = {index: len(request.prompt) + limits[index] - 1 for index, request in waiting.items()}
        order = sorted(waiting, key=lambda index: -needs[index])
        capacity = -(-needs[order[0]] // KEY_BLOCK) * KEY_BLOCK
        slot_bytes = capacity * self.runner.kv_bytes_per_token + self.runner.state_bytes_per_seq
        num_slots = min(max_num_seqs, max(1, self.limits.cache_bytes // max(1, slot_bytes)))
        if num_slots < min(max_num_seqs, len(order)):
            order = [index for index in order if needs[index] > capacity // 2]
        return GenerationScheduler(
            self.runner,
            self.checkpoint.tokenizer,
            self.eos_ids,
            [(index, waiting[index], limits[index]) for index in order],
            num_slots=min(num_slots, len(order)),
            capacity=capacity,
            max_prefill_tokens=self.limits.max_tokens,
            steps_per_block=self.steps_per_block,
            lookahead=self.lookahead,
            make_step=cuda_graph_step if self.runner.device.type == "cuda" else eager_step,
            share_prefixes=self.share_prefixes,
        )

    def _out_of_vocabulary(self, tokens: Sequence[Sequence[int]]) -> str | None:
        """Error for ids without an embedding; on a GPU they would abort the process."""
        highest = max(max(ids, default=0) for ids in tokens)
        if highest < self.runner.vocab_size and min(min(ids, default=0) for ids in tokens) >= 0:
            return None
        return INVALID_PREFIX + (
            f"token id {highest} is outside the model's vocabulary of {self.runner.vocab_size}"
        )


def _max_positions(model: Any) -> int:
    positions = stated_positions(model.config)
    if positions is None:
        raise ConfigError(
            f"{type(model).__name__}: the config has no max_position_embeddings; pass max_length"
        )
    return positions


def _collect(indices: list[int], batch: LoglikelihoodBatch) -> Iterator[tuple[int, ScoreResponse]]:
    yield from zip(indices, batch.responses(), strict=True)


def _release_cached_memory() -> None:
    """Return cached blocks to the device, so that fragmentation does not fail the next, smaller attempt."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

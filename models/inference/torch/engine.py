"""The in-process engine: teachers, hybrids and recurrent students, on a CPU or a GPU."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.models.checkpoints.load import Checkpoint, load_checkpoint
from evalsuite.models.decoder.precision import rounds_states, state_precision
from evalsuite.models.inference import in_process
from evalsuite.models.inference.batch_limits import compute_batch_limits, min_tokens_saved
from evalsuite.models.inference.batching import RequestBatch
from evalsuite.models.inference.in_process import InProcessEngine
from evalsuite.models.inference.proof import UnsupportedModelError, refuse_unsupported
from evalsuite.models.inference.registry import ENGINES, EngineSettings, TokenTimes
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse, ScoreRequest
from evalsuite.models.inference.sampling import SamplingMetadata
from evalsuite.models.inference.torch.cuda_graphs import step_function
from evalsuite.models.inference.torch.loglikelihood import LoglikelihoodBatch, make_batches
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import (
    KEY_BLOCK,
    DecodeBatch,
    GenerationScheduler,
    SequenceState,
    StepFunction,
)
from evalsuite.models.inference.torch.structure import unknown_structure
from evalsuite.models.inference.torch.verify_cache import verify_cache

if TYPE_CHECKING:
    from evalsuite.models.benchmark.subject import Benchmark

SOURCE = (
    *in_process.SOURCE,
    "inference/torch",
    *(f"ops/{name}" for name in ("attention", "rms_norm", "rotary", "glu", "launch.py")),
    *(f"mixers/{name}.py" for name in ("cached_attention", "interface", "window_state")),
    "decoder/head.py",
)
"""Our code that computes the responses of every model; the fingerprint covers it."""

_log = logging.getLogger("evalsuite")


@ENGINES.register("torch")
class TorchEngine(InProcessEngine):
    """Fast inference in this process: caches that branch, static slots, shared prefixes.

    For models that it can take apart and whose own logits it proves to give when it loads them.

    Args:
        checkpoint: model (any device and dtype) and tokenizer.
        max_length: maximum number of positions; None uses the config's `max_position_embeddings`.
        batch_tokens: padded tokens in one forward pass; None chooses by device and free memory.
        slots: sequences and positions of one batch that serves all generation, whose steps are captured once
            and whose memory is kept; None: a batch as its requests need it.

    Raises:
        UnsupportedModelError: decoder and head of the model cannot be run separately, its state is not
            carried from one part of a text to the next, or its structure is not known to this engine.
        ConfigError: `max_length` is not positive or beyond the model's positions.
    """

    display_name = "torch"
    source = SOURCE
    rounds = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        slots: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(checkpoint, max_length=max_length)
        model = checkpoint.model
        if (reason := unknown_structure(model.config, self.max_length)) is not None:
            raise UnsupportedModelError(f"{type(model).__name__}: {reason}")
        name = type(model).__name__
        with refuse_unsupported(f"{name}: its layers do not work with the caches of engine torch"):
            # Rounded states depend on where a text is split; the caches are proved without rounding.
            with state_precision(model, None):
                self.runner = ModelRunner(model)
                verify_cache(self.runner, model)
            self.runner.rounds_states = rounds_states(model)
        self.vocab_size = self.runner.vocab_size
        self.limits = compute_batch_limits(
            model.device,
            model.num_parameters(),
            self.runner.bytes_per_token(),
            batch_tokens,
            unpads=self.runner.unpads,
        )
        on_gpu = model.device.type == "cuda"
        self.steps_per_block, self.lookahead = (8, 1) if on_gpu else (1, 0)
        self._min_saved = min_tokens_saved(model.device.type, model.num_parameters())
        # On a GPU the masks that shared prefixes need rule out fused attention, and prefill is a small part.
        # The rounding of a shared prefix's state would depend on the other requests.
        self.share_prefixes = not on_gpu and not self.runner.rounds_states
        self._slots = slots
        self._last_batch: tuple[tuple[int, int, bool, bool], DecodeBatch, StepFunction] | None = None
        """Shape, slots and step of the last generation; captured graphs serve the next one."""

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> InProcessEngine:
        """Loads the checkpoint; engine transformers runs what this one cannot."""
        checkpoint = load_checkpoint(path, **settings.loading)
        if cls is TorchEngine:
            return open_in_process(checkpoint, max_length=settings.max_length)
        return cls(checkpoint, max_length=settings.max_length)

    @classmethod
    def token_times(
        cls, config: Any, tokenizer: Any, settings: EngineSettings, **expected: int
    ) -> TokenTimes:
        """Times a few layers of the model."""
        from evalsuite.models.inference.token_times import measure_token_times

        kind = open_in_process if cls is TorchEngine else cls
        return measure_token_times(kind, config, tokenizer, settings, **expected)

    def benchmark(self) -> "Benchmark":
        from evalsuite.models.inference.torch.benchmark import TorchBenchmark

        return TorchBenchmark(self.runner, self.checkpoint)

    def _score_batches(self, requests: Sequence[ScoreRequest], indices: Sequence[int]) -> list[RequestBatch]:
        min_saved = sys.maxsize if self.runner.rounds_states else self._min_saved
        return make_batches(requests, indices, self.limits, min_saved)

    def _start(self, requests: Sequence[ScoreRequest], batch: RequestBatch) -> LoglikelihoodBatch:
        return LoglikelihoodBatch(self.runner, requests, self.limits, batch.num_shared)

    def _generate(
        self, requests: Mapping[int, GenerateRequest], max_num_seqs: int
    ) -> Iterator[tuple[int, GenerateResponse]]:
        """Respond to all requests; if their slots do not fit into memory, to the longest of them."""
        # The last generated token is never read.
        needs = {
            index: len(request.prompt) + request.token_limit(self.max_length) - 1
            for index, request in requests.items()
        }
        order = sorted(requests, key=lambda index: -needs[index])
        wanted, longest = self._slots or (len(order), needs[order[0]])
        capacity = -(-max(longest, needs[order[0]]) // KEY_BLOCK) * KEY_BLOCK
        slot_bytes = capacity * self.runner.kv_bytes_per_token + self.runner.state_bytes_per_seq
        num_slots = min(max_num_seqs, max(1, self.limits.cache_bytes // max(1, slot_bytes)))
        if self._slots is None and num_slots < min(max_num_seqs, len(order)):
            order = [index for index in order if needs[index] > capacity // 2]
            wanted = len(order)
        batch, step = self._decode_batch(
            [requests[index] for index in order], min(num_slots, wanted), capacity
        )
        return GenerationScheduler(
            [SequenceState(index, requests[index], self._stop_checker(requests[index])) for index in order],
            batch=batch,
            step=step,
            max_prefill_tokens=self.limits.max_tokens,
            steps_per_block=self.steps_per_block,
            lookahead=self.lookahead,
            share_prefixes=self.share_prefixes,
        ).responses()

    def _decode_batch(
        self, requests: Sequence[GenerateRequest], num_slots: int, capacity: int
    ) -> tuple[DecodeBatch, StepFunction]:
        """Slots for these requests, and their step; those of the last call if their shapes are the same."""
        sampling = SamplingMetadata.allocate(num_slots, requests, self.runner.device)
        shape = num_slots, capacity, sampling.any_sampled, sampling.any_filtered
        if self._last_batch is None or self._last_batch[0] != shape:
            self._last_batch = None  # Frees its memory first.
            _, sample = self.runner.prefill([requests[0].prompt[:1]], keep=True)
            assert sample is not None
            batch = DecodeBatch(self.runner, sample, sampling, num_slots, capacity)
            self._last_batch = shape, batch, step_function(batch)
        return self._last_batch[1:]

    @property
    def _keeps_memory(self) -> bool:
        return self._slots is not None

    def _release(self) -> bool:
        held = self._last_batch is not None
        self._last_batch = None
        return held


def open_in_process(checkpoint: Checkpoint, *, max_length: int | None = None) -> InProcessEngine:
    """Engine torch where it runs the model; else engine transformers, with a warning.

    Args:
        checkpoint: model and tokenizer.
        max_length: maximum number of positions; None uses the config's, if it states any.

    Raises:
        ConfigError: neither can run the model, or `max_length` is not positive or beyond its positions.
    """
    from evalsuite.models.inference.transformers.engine import TransformersEngine

    try:
        return TorchEngine(checkpoint, max_length=max_length)
    except UnsupportedModelError as error:
        notice = f"engine transformers runs it, which is slower, because engine torch cannot: {error}"
    engine = TransformersEngine(checkpoint, max_length=max_length, notice=notice)
    _log.warning("%s: %s", checkpoint.label, engine.notice)
    return engine

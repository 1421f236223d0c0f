"""The transformers engine: any causal language model, right first, and slower than engine torch."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING

from evalsuite.models.checkpoints.load import Checkpoint, load_checkpoint
from evalsuite.models.inference.batch_limits import compute_batch_limits
from evalsuite.models.inference.batching import RequestBatch
from evalsuite.models.inference.in_process import SOURCE, InProcessEngine
from evalsuite.models.inference.registry import ENGINES, EngineSettings
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse, ScoreRequest
from evalsuite.models.inference.stopping import GenerationState
from evalsuite.models.inference.transformers.generation import (
    generate_in_lockstep,
    make_lockstep_batches,
)
from evalsuite.models.inference.transformers.loglikelihood import PlainLoglikelihoodBatch, make_batches
from evalsuite.models.inference.transformers.runner import PlainRunner
from evalsuite.models.inference.transformers.verify import verify

if TYPE_CHECKING:
    from evalsuite.models.benchmark.subject import Benchmark

KERNEL_PACKAGES = ("causal-conv1d", "flash-attn", "flash-linear-attention", "kernels", "mamba-ssm")
"""Packages whose kernels transformers uses where they are installed."""


@ENGINES.register("transformers")
class TransformersEngine(InProcessEngine):
    """Any causal language model, through transformers' own forward pass; slower than engine torch.

    Log-likelihoods come from texts read whole. Batches, and the model's own cache for generation, are used
    where they give the same logits as the text read whole and alone, which is checked at load.

    Args:
        checkpoint: model (any device and dtype) and tokenizer.
        max_length: maximum number of positions; None uses the config's, if it states any.
        batch_tokens: padded tokens in one forward pass; None chooses by device and free memory.
        notice: why it runs in place of the engine that was chosen.

    Raises:
        ConfigError: the model cannot be run at all, is not causal, or `max_length` is not positive or beyond
            its positions.
    """

    display_name = "transformers"
    source = (*SOURCE, "inference/transformers", "inference/proof.py", "decoder/cache.py")

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        notice: str = "",
    ) -> None:
        super().__init__(checkpoint, max_length=max_length)
        model = checkpoint.model
        self.runner = PlainRunner(model)
        problems = verify(self.runner)
        self.notice = "; ".join([*([notice] if notice else []), *problems])
        self.vocab_size = self.runner.vocab_size
        self.limits = compute_batch_limits(
            model.device, model.num_parameters(), self.runner.bytes_per_token(), batch_tokens
        )

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> "TransformersEngine":
        """Loads the checkpoint."""
        return cls(
            load_checkpoint(path, as_decoder=False, **settings.loading), max_length=settings.max_length
        )

    def benchmark(self) -> "Benchmark":
        """Measures transformers' own `generate`."""
        from evalsuite.models.inference.transformers.benchmark import GenerateBenchmark

        return GenerateBenchmark(self.checkpoint)

    @cached_property
    def versions(self) -> dict[str, str]:
        """As for engine torch, with the packages of kernels and how texts are read."""
        kernels = {}
        for package in KERNEL_PACKAGES:
            try:
                kernels[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        reading = {"batches": self.runner.batching, "cache": self.runner.caching}
        return {**super().versions, **kernels, **reading}

    def _score_batches(self, requests: Sequence[ScoreRequest], indices: Sequence[int]) -> list[RequestBatch]:
        return make_batches(requests, indices, self.limits)

    def _start(self, requests: Sequence[ScoreRequest], batch: RequestBatch) -> PlainLoglikelihoodBatch:
        return PlainLoglikelihoodBatch(self.runner, requests, self.limits)

    def _generate(
        self, requests: Mapping[int, GenerateRequest], max_num_seqs: int
    ) -> Iterator[tuple[int, GenerateResponse]]:
        sequences = [
            GenerationState(index, request, self._stop_checker(request))
            for index, request in requests.items()
        ]
        for batch in make_lockstep_batches(sequences, self.runner, self.limits, max_num_seqs):
            yield from generate_in_lockstep(self.runner, batch)

"""Measurements of a checkpoint in vLLM, of requests as a client sees them."""

import random
from typing import Any

import torch

from evalsuite.foundation import ConfigError
from evalsuite.foundation.efficiency import EfficiencyRow
from evalsuite.models.benchmark.points import Point
from evalsuite.models.benchmark.subject import Benchmark, Subject, teacher_of
from evalsuite.models.benchmark.timing import time_responses
from evalsuite.models.checkpoints.load import CheckpointInfo
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams

NEW_TOKENS = 33
"""Length of the longer of two responses; the difference to a single token is decoding."""


class VllmBenchmark(Benchmark):
    """Measures greedy requests to a vLLM process.

    The cache size is that of the config; vLLM rounds it up to pages. Peak memory is not reported, because
    vLLM allocates beforehand what it is given.

    Args:
        info: the checkpoint.
        engine: its `VllmEngine`.
    """

    def __init__(self, info: CheckpointInfo, engine: Any) -> None:
        self.engine = engine
        # Disables early stops; the measurement does not depend on the generated tokens.
        engine.eos_ids = frozenset()
        versions = engine.versions
        stored = str(info.config.dtype).removeprefix("torch.")
        dtype: torch.dtype = getattr(torch, stored if engine.dtype == "auto" else engine.dtype)
        on_gpu = versions["device"] == "cuda" and torch.cuda.is_available()
        self.subject = Subject(
            label=info.label,
            weights_id=info.weights_id,
            teacher=teacher_of(info),
            engine="vllm",
            versions=f"vLLM {versions['vllm']}",
            device=torch.cuda.get_device_name() if on_gpu else versions["device"].upper(),
            dtype=dtype,
            config=info.config,
        )

    def measure(self, point: Point) -> EfficiencyRow:
        """Refuses contexts beyond the engine's maximum length."""
        if point.kind != "request":
            raise ConfigError("vLLM takes no synthetic caches; measure requests")
        limit = self.engine.max_length
        if point.context + NEW_TOKENS > limit:
            raise ConfigError(
                f"{self.subject.label}: {point.context} prompt tokens and {NEW_TOKENS} generated ones exceed "
                f"the engine's maximum length of {limit}"
            )
        draw = random.Random(0)
        size = self.subject.config.get_text_config().vocab_size
        rows = [tuple(draw.randrange(size) for _ in range(point.context)) for _ in range(point.batch)]

        def respond(count: int) -> None:
            requests = [GenerateRequest(row, SamplingParams(count)) for row in rows]
            for _, response in self.engine.generate(requests):
                assert len(response.tokens) == count, response

        respond(NEW_TOKENS)
        # The work happens in another process: its results arrive on the host.
        timed = time_responses(respond, NEW_TOKENS, point.repeats, torch.device("cpu"))
        return self.subject.row(point, **timed)

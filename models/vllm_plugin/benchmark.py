"""Speed of a checkpoint in vLLM, measured as `evalsuite.models.throughput` does in process."""

import random

import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints import CheckpointInfo
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.vllm.engine import VllmEngine
from evalsuite.models.model_stats import cache_size
from evalsuite.models.throughput import NUM_GENERATED, Throughput, best_time


def measure_served(info: CheckpointInfo, context: int, batch: int, engine: VllmEngine) -> Throughput:
    """Measure prefill and greedy decoding of `batch` random prompts of `context` tokens.

    `state_bytes` is computed from the config; vLLM rounds it up to pages. Peak memory is not reported,
    because vLLM preallocates what it is given.

    Raises:
        ConfigError: a context or batch below 1, or a context beyond the engine's maximum length.
    """
    if context < 1 or batch < 1:
        raise ConfigError(f"context {context}, batch {batch}: both must be at least 1")
    if context + NUM_GENERATED > engine.max_length:
        raise ConfigError(
            f"{info.label}: {context} prompt tokens and {NUM_GENERATED} generated ones exceed the engine's "
            f"maximum length of {engine.max_length}"
        )
    # Disables early stops; the measurement does not depend on the generated tokens.
    engine.eos_ids = frozenset()
    draw = random.Random(0)
    rows = [tuple(draw.randrange(info.config.vocab_size) for _ in range(context)) for _ in range(batch)]

    def generate(count: int) -> None:
        for _, response in engine.generate([GenerateRequest(row, SamplingParams(count)) for row in rows]):
            assert len(response.tokens) == count, response

    generate(NUM_GENERATED)
    prefill, total = best_time(lambda: generate(1)), best_time(lambda: generate(NUM_GENERATED))
    versions = engine.versions
    stored = str(info.config.dtype).removeprefix("torch.")
    dtype: torch.dtype = getattr(torch, stored if engine.dtype == "auto" else engine.dtype)
    on_gpu = versions["device"] == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else versions["device"].upper()
    return Throughput(
        weights_id=info.weights_id,
        context=context,
        batch=batch,
        prefill_tokens_per_second=round(batch * context / prefill, 1),
        decode_tokens_per_second=round(batch * (NUM_GENERATED - 1) / max(total - prefill, 0.01 * total), 1),
        state_bytes=cache_size(info.config, dtype).at(context),
        peak_bytes=None,
        device=f"{name}, vLLM {versions['vllm']}",
    )

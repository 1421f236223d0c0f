"""What a checkpoint costs in vLLM, measured as `evalsuite.models.efficiency` measures it in process."""

import random

import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.accounting import cache_cost
from evalsuite.models.checkpoints import CheckpointInfo
from evalsuite.models.efficiency import NEW_TOKENS, Cost, quickest
from evalsuite.models.engine.requests import GenerateRequest, Sampling
from evalsuite.models.engine.vllm_engine import VllmEngine


def measure_served(info: CheckpointInfo, context: int, batch: int, engine: VllmEngine) -> Cost:
    """Let vLLM read `batch` drawn prompts of `context` tokens and write after them, greedily.

    The state is what the config says a sequence needs; vLLM rounds it up to pages. Its memory is not
    reported: vLLM takes what it is given.

    Raises:
        ConfigError: a context or batch below 1, or more positions than the engine has.
    """
    if context < 1 or batch < 1:
        raise ConfigError(f"context {context}, batch {batch}: both must be at least 1")
    if context + NEW_TOKENS > engine.max_length:
        raise ConfigError(
            f"{info.label}: {context} tokens and {NEW_TOKENS} written ones do not fit into the "
            f"{engine.max_length} positions that vLLM reads"
        )
    # An answer must not end early: nothing measured depends on which tokens these are.
    engine.eos = frozenset()
    draw = random.Random(0)
    rows = [tuple(draw.randrange(info.config.vocab_size) for _ in range(context)) for _ in range(batch)]

    def write(count: int) -> None:
        for _, answer in engine.generate([GenerateRequest(row, Sampling(count)) for row in rows]):
            assert len(answer.tokens) == count, answer

    write(NEW_TOKENS)
    first, all_of = quickest(lambda: write(1)), quickest(lambda: write(NEW_TOKENS))
    versions = engine.versions
    stored = str(info.config.dtype).removeprefix("torch.")
    kind: torch.dtype = getattr(torch, stored if engine.dtype == "auto" else engine.dtype)
    on_gpu = versions["device"] == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else versions["device"].upper()
    return Cost(
        weights_id=info.weights_id,
        context=context,
        batch=batch,
        prefill_tokens_per_second=round(batch * context / first, 1),
        decode_tokens_per_second=round(batch * (NEW_TOKENS - 1) / max(all_of - first, 0.01 * all_of), 1),
        state_bytes=cache_cost(info.config, kind).at(context),
        peak_bytes=None,
        device=f"{name}, vLLM {versions['vllm']}",
    )

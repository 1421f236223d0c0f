"""Estimate of prefill and decode speed on this machine, before a checkpoint's weights are loaded.

Two shallow models with a few of its layers and random weights run in the engine; the time of the full model
is extrapolated linearly in the number of layers.
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.decoder.build import to_decoder
from evalsuite.models.inference.batch_limits import max_num_seqs
from evalsuite.models.inference.in_process import InProcessEngine
from evalsuite.models.inference.registry import EngineSettings, TokenTimes
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams

SHALLOW_LAYERS, ADDED_LAYERS = 2, 4
"""Number of layers of the shallow model, and how many more the deeper one has."""
PREFILL_TOKENS = {"cpu": 1024, "cuda": 32768}
"""Tokens of one prefill pass, by device type."""
PROMPT_TOKENS = 8
"""Prompt length for the decode measurement."""
DECODE_TOKENS = {"cpu": (2, 10), "cuda": (9, 49)}
"""A short and a long response; their difference excludes one-time costs such as graph capture."""
ROUNDS = 3
"""The models are timed in turn and the best time counts, because load from other processes varies."""
MAX_SECONDS = 10.0
"""Time after which no further round starts."""


def measure_token_times(
    kind: Callable[[Checkpoint], InProcessEngine],
    config: PreTrainedConfig,
    tokenizer: Any,
    settings: EngineSettings,
    *,
    parameters: int,
    prompt_tokens: int,
    num_responses: int,
) -> TokenTimes:
    """Measure shallow versions of a model in an engine of this `kind` and extrapolate.

    Arguments as in `EngineType.token_times`; 0 responses skip the decode measurement.

    Raises:
        ValueError: transformers has no causal language model for this config.
    """
    where = torch.device(settings.device)
    depth = int(config.get_text_config().num_hidden_layers)
    engines = [
        _random_engine(kind, with_layers(config, layers), tokenizer, settings)
        for layers in _layer_choices(depth)
    ]
    positions = engines[0].max_length
    length = max(1, min(prompt_tokens, positions, PREFILL_TOKENS[where.type]))
    batch = PREFILL_TOKENS[where.type] // length
    num_seqs = min(max(1, num_responses), max_num_seqs(where, parameters))
    few, many = (min(count, max(1, positions - PROMPT_TOKENS)) for count in DECODE_TOKENS[where.type])
    prefill, short, long = ([float("inf")] * len(engines) for _ in range(3))
    start = time.perf_counter()
    for _ in range(ROUNDS + 1):  # The first round is the warm-up.
        for i, engine in enumerate(engines):
            prefill[i] = min(prefill[i], _time_generation(engine, batch, length, 1))
            if num_responses:
                short[i] = min(short[i], _time_generation(engine, num_seqs, PROMPT_TOKENS, few))
                long[i] = min(long[i], _time_generation(engine, num_seqs, PROMPT_TOKENS, many))
        if time.perf_counter() - start > MAX_SECONDS:
            break
    steps = [max(b - a, 0.0) / max(1, many - few) for a, b in zip(short, long, strict=True)]
    return TokenTimes(
        _extrapolate(prefill, depth) / (batch * length),
        _extrapolate(steps, depth) / num_seqs if num_responses else 0.0,
        num_seqs,
    )


def _time_generation(engine: InProcessEngine, num_seqs: int, length: int, count: int) -> float:
    """Seconds to generate `count` tokens after each of `num_seqs` random prompts of `length` tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(engine.vocab_size, (num_seqs, length), generator=generator).tolist()
    requests = [GenerateRequest(tuple(row), SamplingParams(count)) for row in tokens]
    start = time.perf_counter()
    for _ in engine.generate(requests):
        pass
    return time.perf_counter() - start


def _layer_choices(depth: int) -> list[list[int]]:
    """Layer indices of the models to measure: all layers, or two evenly spaced subsets."""
    if depth <= SHALLOW_LAYERS + ADDED_LAYERS:
        return [list(range(depth))]
    few = [number * depth // SHALLOW_LAYERS for number in range(SHALLOW_LAYERS)]
    return [few, few + [number * depth // ADDED_LAYERS for number in range(ADDED_LAYERS)]]


def _extrapolate(seconds: Sequence[float], depth: int) -> float:
    """Time of the full model from the measured ones; the slope is clamped to zero against noise."""
    if len(seconds) == 1:
        return seconds[0]
    per_layer = max(seconds[1] - seconds[0], 0.0) / ADDED_LAYERS
    return seconds[0] + (depth - SHALLOW_LAYERS) * per_layer


def with_layers(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """Config of the model that consists of these layers of `config` only."""
    result = copy.deepcopy(config)
    inner = result.get_text_config()
    depth = inner.num_hidden_layers
    # A student's mixers are its own field, all others are those of its teacher's config.
    for fields in (vars(inner), vars(getattr(inner, "base", inner))):
        for name, value in fields.items():
            if isinstance(value, list) and len(value) == depth:
                fields[name] = [value[number] for number in layers]
    for unused in vars(inner).get("mixer_options", {}).keys() - vars(inner).get("mixers", ()):
        del inner.mixer_options[unused]
    inner.num_hidden_layers = len(layers)
    return result


def _random_engine(
    kind: Callable[[Checkpoint], InProcessEngine],
    config: PreTrainedConfig,
    tokenizer: Any,
    settings: EngineSettings,
) -> InProcessEngine:
    with torch.device(settings.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, settings.dtype), trust_remote_code=settings.trust_remote_code
        )
    engine = kind(Checkpoint("estimate", "", to_decoder(model.eval()), tokenizer, "0" * 16))
    # No end-of-sequence tokens, so that every response has the full length.
    engine.eos_ids = frozenset()
    return engine

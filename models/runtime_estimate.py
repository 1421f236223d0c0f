"""Estimate of prefill and decode speed on this machine, before a checkpoint's weights are loaded.

Two shallow models with a few of its layers and random weights run in the engine; the time of the full model
is extrapolated linearly in the number of layers.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.torch.batch_limits import max_num_seqs
from evalsuite.models.inference.torch.engine import TorchEngine

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


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Seconds per token in large batches: prefill, and decode (of up to `num_seqs` sequences at a time)."""

    prefill: float
    decode: float
    num_seqs: int

    def seconds(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Time for this number of tokens."""
        return prefill_tokens * self.prefill + decode_tokens * self.decode


def measure_token_times(
    config: PreTrainedConfig,
    tokenizer: Any,
    *,
    device: str,
    dtype: str,
    parameters: int,
    prompt_tokens: int,
    num_responses: int,
    trust_remote_code: bool = False,
) -> TokenTimes:
    """Measure shallow versions of a model and extrapolate.

    Args:
        config: config of the model; tokenizer: its tokenizer.
        device, dtype: device and dtype of the run.
        parameters: number of parameters.
        prompt_tokens: typical prompt length.
        num_responses: number of generations; 0 skips the decode measurement.
        trust_remote_code: allow code from the checkpoint.

    Raises:
        ValueError: transformers has no causal language model for this config.
    """
    where = torch.device(device)
    depth = int(config.get_text_config().num_hidden_layers)
    engines = [
        _random_engine(with_layers(config, layers), tokenizer, where, dtype, trust_remote_code)
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


def _time_generation(engine: TorchEngine, num_seqs: int, length: int, count: int) -> float:
    """Seconds to generate `count` tokens after each of `num_seqs` random prompts of `length` tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(engine.runner.vocab_size, (num_seqs, length), generator=generator).tolist()
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
    if isinstance(config, StudentConfig):
        teacher = _select_layers(config.teacher, config.teacher["num_hidden_layers"], layers)
        mixers = [config.mixers[number] for number in layers]
        options = {name: values for name, values in config.mixer_options.items() if name in mixers}
        return StudentConfig(teacher | {"num_hidden_layers": len(layers)}, mixers, options)
    result = copy.deepcopy(config)
    inner = result.get_text_config()
    for name, value in _select_layers(vars(inner), inner.num_hidden_layers, layers).items():
        if isinstance(value, list):
            setattr(inner, name, value)
    inner.num_hidden_layers = len(layers)
    return result


def _select_layers(fields: dict[str, Any], depth: int, layers: Sequence[int]) -> dict[str, Any]:
    """Reduce per-layer fields (lists of `depth` entries) to the selected layers."""
    return {
        name: [value[number] for number in layers]
        if isinstance(value, list) and len(value) == depth
        else value
        for name, value in fields.items()
    }


def _random_engine(
    config: PreTrainedConfig, tokenizer: Any, where: torch.device, dtype: str, trust_remote_code: bool
) -> TorchEngine:
    with torch.device(where):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
    engine = TorchEngine(Checkpoint("estimate", "", model.eval(), tokenizer, "0" * 16))
    # No end-of-sequence tokens, so that every response has the full length.
    engine.eos_ids = frozenset()
    return engine

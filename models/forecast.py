"""How fast a model will read and write here, before its weights are loaded.

A few of its layers, with random weights, are run by the engine in two depths; time grows with every further
layer as it did between the two.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from evalsuite.models.checkpoints import Checkpoint
from evalsuite.models.engine.memory import most_rows
from evalsuite.models.engine.requests import GenerateRequest, Sampling
from evalsuite.models.engine.torch_engine import TorchEngine
from evalsuite.models.student import StudentConfig

FEW, MORE = 2, 4
"""Layers of the shallow model, and how many more the deeper one has."""
PASS = {"cpu": 1024, "cuda": 32768}
"""Tokens that are read at once, by type of device."""
PROMPT = 8
"""Tokens that writing is measured after."""
STEPS = {"cpu": (2, 10), "cuda": (9, 49)}
"""Lengths of a short and a long answer; what both pay once, such as capturing graphs, is no token's."""
ROUNDS = 3
"""Both models are timed in turn, and the best counts: a busy machine slows now the one, now the other."""
ENOUGH = 10.0
"""Seconds after which no further round begins."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds per token, many at once: read, and written (in up to `rows` answers at a time)."""

    read: float
    written: float
    rows: int

    def seconds(self, read: int, written: int) -> float:
        """How long so many tokens take."""
        return read * self.read + written * self.written


def forecast(
    config: PreTrainedConfig,
    tokenizer: Any,
    *,
    device: str,
    dtype: str,
    parameters: int,
    length: int,
    answers: int,
    trust_remote_code: bool = False,
) -> Speed:
    """Measure a shallow stand-in of a model.

    Args:
        config: the model's; tokenizer: its own.
        device, dtype: where and how it will run.
        parameters: how many it has.
        length: tokens that are read for one request.
        answers: how many are written; 0 measures no writing.
        trust_remote_code: let the config bring its code.

    Raises:
        ValueError: transformers knows no causal model of this config.
    """
    where = torch.device(device)
    depth = int(config.get_text_config().num_hidden_layers)
    engines = [
        _engine(shortened(config, layers), tokenizer, where, dtype, trust_remote_code)
        for layers in _layers(depth)
    ]
    positions = engines[0].max_length
    length = max(1, min(length, positions, PASS[where.type]))
    batch = PASS[where.type] // length
    rows = min(max(1, answers), most_rows(where, parameters))
    few, many = (min(count, max(1, positions - PROMPT)) for count in STEPS[where.type])
    read, short, long = ([float("inf")] * len(engines) for _ in range(3))
    start = time.perf_counter()
    for _ in range(ROUNDS + 1):  # The first round warms up; it is hardly ever the best.
        for number, engine in enumerate(engines):
            read[number] = min(read[number], _seconds(engine, batch, length, 1))
            if answers:
                short[number] = min(short[number], _seconds(engine, rows, PROMPT, few))
                long[number] = min(long[number], _seconds(engine, rows, PROMPT, many))
        if time.perf_counter() - start > ENOUGH:
            break
    steps = [max(b - a, 0.0) / max(1, many - few) for a, b in zip(short, long, strict=True)]
    return Speed(
        _deeper(read, depth) / (batch * length), _deeper(steps, depth) / rows if answers else 0.0, rows
    )


def _seconds(engine: TorchEngine, rows: int, length: int, count: int) -> float:
    """Time of writing `count` tokens after each of `rows` drawn prompts of `length` tokens."""
    make = torch.Generator().manual_seed(0)
    drawn = torch.randint(engine.decoder.vocabulary, (rows, length), generator=make).tolist()
    asked = [GenerateRequest(tuple(row), Sampling(count)) for row in drawn]
    start = time.perf_counter()
    for _ in engine.generate(asked):
        pass
    return time.perf_counter() - start


def _layers(depth: int) -> list[list[int]]:
    """Which layers the stand-ins have: all, or a few and then more, evenly spaced."""
    if depth <= FEW + MORE:
        return [list(range(depth))]
    few = [number * depth // FEW for number in range(FEW)]
    return [few, few + [number * depth // MORE for number in range(MORE)]]


def _deeper(seconds: Sequence[float], depth: int) -> float:
    """Seconds of the whole model from those of the stand-ins; noise may make the deeper one the faster."""
    if len(seconds) == 1:
        return seconds[0]
    each = max(seconds[1] - seconds[0], 0.0) / MORE
    return seconds[0] + (depth - FEW) * each


def shortened(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """The config of a model that has only these layers of the one that `config` describes."""
    if isinstance(config, StudentConfig):
        teacher = _cut(config.teacher, config.teacher["num_hidden_layers"], layers)
        mixers = [config.mixers[number] for number in layers]
        options = {name: values for name, values in config.mixer_options.items() if name in mixers}
        return StudentConfig(teacher | {"num_hidden_layers": len(layers)}, mixers, options)
    found = copy.deepcopy(config)
    inner = found.get_text_config()
    for name, value in _cut(vars(inner), inner.num_hidden_layers, layers).items():
        if isinstance(value, list):
            setattr(inner, name, value)
    inner.num_hidden_layers = len(layers)
    return found


def _cut(fields: dict[str, Any], depth: int, layers: Sequence[int]) -> dict[str, Any]:
    """Fields of which those that say something per layer say it of these layers alone."""
    return {
        name: [value[number] for number in layers]
        if isinstance(value, list) and len(value) == depth
        else value
        for name, value in fields.items()
    }


def _engine(
    config: PreTrainedConfig, tokenizer: Any, where: torch.device, dtype: str, trust_remote_code: bool
) -> TorchEngine:
    with torch.device(where):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
    engine = TorchEngine(Checkpoint("forecast", "", model.eval(), tokenizer, "0" * 16))
    # An answer must not end early: nothing measured depends on which tokens these are.
    engine.eos = frozenset()
    return engine

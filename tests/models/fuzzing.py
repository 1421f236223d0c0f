"""Random students: any teacher family, any mixer per layer, any options, with parameters that matter."""

import os
import random
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models import MIXERS, StudentForCausalLM, build_student
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.mixers.options import option_types

SEEDS = "EVALSUITE_FUZZ_SEEDS"
"""Environment variable `FIRST:END`: the seeds of a campaign, in place of those of the tests."""

NUMBERS: dict[str, tuple[float, ...]] = {
    "num_heads": (1, 2, 4, 8),
    "num_qk_heads": (1, 2),
    "expand_k": (0.5, 2.0),
    "expand_v": (0.5, 2.0),
    "rotary_base": (50.0, 10000.0),
    "short_conv": (0, 1, 2, 3),
    "gate_rank": (-1, 3),
    "window": (1, 2, 5, 9),
    "window_sinks": (1, 3),
    "sinks": (1, 2, 4),
    "min_decay": (0.3, 0.6),
    "max_decay": (0.95, 0.9999),
    "decay_group_size": (2, 4),
    "decay_rank": (-1, 1, 5),
    "decay_temperature": (2.0, 16.0),
    "gate_cap": (3.0, 8.0),
    "input_gate_bias": (-2.0, 1.0),
    "lower_bound": (0.2, 0.7),
    "feature_dim": (4, 8),
    "floor": (0.1, 1.0),
    "lambda_init": (0.5, 5.0),
    "lambda_lower_bound": (0.05, 0.3),
    "cg_steps": (3, 60),
    "logit_scale_base": (4.0, 500.0),
}
"""Values of every option that is a number, next to its default. A new option needs some, too."""

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 1},
    {"head_dim": 16},
    {"tie_word_embeddings": True},
)
WINDOWED = ("mistral", "olmo3", "gemma2", "gemma3_text")


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    """Parametrize a test by `seed`: a few always, many in the long tests, or those of `SEEDS` alone."""
    if given := os.environ.get(SEEDS):
        first, end = map(int, given.split(":"))
        return pytest.mark.parametrize("seed", range(first, end))
    later = [pytest.param(seed, marks=pytest.mark.long) for seed in range(few, many)]
    return pytest.mark.parametrize("seed", [*range(few), *later])


@dataclass(frozen=True)
class RandomStudent:
    """A student in float32 and how it was made."""

    teacher: PreTrainedModel
    model: StudentForCausalLM
    family: str
    mixers: list[str]
    options: dict[str, dict[str, Any]]
    init: str
    heads: dict[int, list[int]]
    """Softmax heads of recurrent layers."""

    @property
    def eager(self) -> bool:
        """Whether its softmax layers have their softmax in float32, whatever the dtype of the model."""
        return self.family == "gemma2"

    def __str__(self) -> str:
        return f"{self.family}, init {self.init}, {self.mixers} with {self.options}, heads {self.heads}"


def random_student(
    rng: random.Random, make_teacher: Callable[..., PreTrainedModel], **settings: Any
) -> RandomStudent:
    """Draw a teacher with `settings`, and students of it until one is not refused by a ConfigError."""
    from tests.models.conftest import FAMILIES

    family = rng.choice(sorted(FAMILIES))
    changes = rng.choice(SHAPES) | settings
    if family in WINDOWED and rng.random() < 0.5:
        changes["sliding_window"] = rng.choice((2, 7))
    layers = rng.choice((2, 2, 3, 4))
    teacher = make_teacher(family, layers=layers, **changes)
    for _ in range(200):
        mixers = random_layers(rng, layers)
        options = {name: random_options(rng, name) for name in dict.fromkeys(mixers)}
        init = rng.choice(("qkvo", "qkvo", "qkv", "vo", "random"))
        heads = random_heads(rng, mixers)
        try:
            student = build_student(
                teacher, mixers, options=options, init=init, seed=rng.randrange(99), softmax_heads=heads
            )
        except ConfigError:
            continue
        shake(student, rng.randrange(2**31))
        return RandomStudent(teacher, student.eval(), family, mixers, options, init, heads)
    raise AssertionError(f"no student of {family} {changes} in 200 draws")


def random_layers(rng: random.Random, layers: int) -> list[str]:
    """One mixer for all layers, or a hybrid of several, in which attention is frequent."""
    names = sorted(MIXERS)
    if rng.random() < 0.4:
        return [rng.choice(names)] * layers
    return [rng.choice((*rng.sample(names, 3), "softmax", "sliding_window")) for _ in range(layers)]


def random_heads(rng: random.Random, mixers: list[str]) -> dict[int, list[int]]:
    """Some of the four heads of some recurrent layers."""
    recurrent = [layer for layer, name in enumerate(mixers) if issubclass(MIXERS[name], RecurrentMixer)]
    chosen = [layer for layer in recurrent if rng.random() < 0.5]
    return {layer: sorted(rng.sample(range(4), rng.choice((1, 2, 3)))) for layer in chosen}


def random_options(rng: random.Random, mixer: str) -> dict[str, Any]:
    """A preset or none, and values of some of the options."""
    kind = MIXERS[mixer].Options
    presets = sorted(getattr(kind, "presets", {}))
    values: dict[str, Any] = {"preset": rng.choice(presets)} if presets and rng.random() < 0.5 else {}
    share = rng.choice((0.0, 0.1, 0.3))
    for name, hint in option_types(kind).items():
        if rng.random() < share:
            values[name] = _random_value(rng, mixer, name, hint)
    if getattr(MIXERS[mixer], "uses_delta_rule", False) and values.get("qk_norm") == "none":
        # With long keys, whose I - b k k' is no contraction, a state outgrows all numbers.
        del values["qk_norm"]
    if mixer == "sliding_window":
        # The default is longer than the sequences.
        values.setdefault("window", rng.choice(NUMBERS["window"]))
        values.setdefault("sinks", rng.choice((0, *NUMBERS["sinks"])))
    return values


def _random_value(rng: random.Random, mixer: str, name: str, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        return rng.choice(typing.get_args(hint))
    if hint is bool:
        return rng.random() < 0.5
    assert name in NUMBERS, f"option {name} of {mixer} is not fuzzed: give it values in NUMBERS"
    (number,) = {each for each in (hint, *typing.get_args(hint)) if each in (int, float)}
    return number(rng.choice(NUMBERS[name]))


@torch.no_grad()
def shake(model: torch.nn.Module, seed: int) -> None:
    """Change all parameters a little: gates of a new student are constant."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)

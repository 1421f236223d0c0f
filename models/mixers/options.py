"""What a recipe may say about a mixer: a frozen dataclass each, and a parser that refuses the rest."""

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from evalsuite.foundation import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class MixerOptions:
    """Options that every recurrent mixer has; a mixer changes the defaults and adds its own."""

    expand_kv: bool = True
    """Give every query head a key and value head of its own (whole heads of the teacher's groups)."""
    rotary: bool = False
    """Rotate q and k by the teacher's position embedding."""
    short_conv: int = 4
    """Taps of the causal depthwise convolution on q, k and v; 0 leaves it out. Starts as the identity."""
    activation: Literal["silu", "none"] = "silu"
    """What q and k pass through after the convolution."""
    qk_norm: Literal["l2", "none"] = "l2"
    """Normalise each head of q and k to length one."""
    scale: Literal["one", "head_dim"] = "one"
    """Factor on the queries: 1, or head_dim ** -0.5."""
    output_gate: Literal["silu", "sigmoid", "none"] = "silu"
    """Activation of the output gate. Its bias starts where the gate is about one (seed 003, section 4.1)."""
    gate_rank: int = 0
    """Rank of the output gate's projection; 0 is full rank."""
    output_norm: Literal["none", "rms"] = "none"
    """Normalise each head of the output."""

    def __post_init__(self) -> None:
        for name in ("short_conv", "gate_rank"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be 0 or more")


OptionsType = TypeVar("OptionsType", bound="MixerOptions")


def parse_options(kind: type[OptionsType], values: dict[str, Any], where: str) -> OptionsType:
    """Build `kind` from what a user wrote.

    Raises:
        ConfigError: an option that the mixer does not have (naming the nearest one), or a value of the
            wrong type or outside the choices; the message starts with `where`.
    """
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(f"{where}: unknown option '{name}' = {value!r}{nearest(name, hints)}")
        _check_type(name, value, hints[name], where)
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_type(name: str, value: Any, hint: Any, where: str) -> None:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{where}: {name} = {value!r}; known: {', '.join(map(str, choices))}")
        return
    # bool is an int to Python, but `short_conv: true` is a mistake.
    fits = isinstance(value, (int, float) if hint is float else hint) and (
        hint is bool or not isinstance(value, bool)
    )
    if not fits:
        raise ConfigError(f"{where}: {name} = {value!r}: expected {hint.__name__}")


def option_defaults(kind: type[MixerOptions]) -> dict[str, Any]:
    """Name → default of every option of a mixer, for `evalsuite show mixers`."""
    return {field.name: field.default for field in dataclasses.fields(kind)}

"""Mixer options: one frozen dataclass per mixer, and a parser that rejects anything else."""

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from evalsuite.foundation import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class MixerOptions:
    """Options common to all recurrent mixers; a mixer changes the defaults and adds its own."""

    expand_kv: bool = True
    """Give each query head its own key and value head (copies of full heads of the teacher's groups)."""
    rotary: bool = False
    """Apply the teacher's rotary position embedding to q and k."""
    short_conv: int = 4
    """Kernel size of the depthwise convolutions of q, k and v; 0 for none. Initialised to the identity."""
    activation: Literal["silu", "none"] = "silu"
    """Activation of q and k after the convolution."""
    qk_norm: Literal["l2", "none"] = "l2"
    """Normalisation of each head of q and k to length one."""
    scale: Literal["one", "head_dim"] = "one"
    """Factor on the queries: 1, or head_dim ** -0.5."""
    output_gate: Literal["silu", "sigmoid", "none"] = "silu"
    """Activation of the output gate. Its bias is initialised so that the gate is about one (arXiv 2603.26556,
    section 4.1)."""
    gate_rank: int = 0
    """Rank of the output gate's projection; 0 is full rank."""
    output_norm: Literal["none", "rms"] = "none"
    """Norm of each head of the output."""

    def __post_init__(self) -> None:
        for name in ("short_conv", "gate_rank"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be 0 or more")


OptionsType = TypeVar("OptionsType", bound="MixerOptions")


def parse_options(kind: type[OptionsType], values: dict[str, Any], where: str) -> OptionsType:
    """Build `kind` from a recipe's values.

    Raises:
        ConfigError: an unknown option (the message names the nearest one), or a value of the wrong type or
            outside the choices; the message starts with `where`.
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
    # bool is a subclass of int, but `short_conv: true` is a mistake.
    fits = isinstance(value, (int, float) if hint is float else hint) and (
        hint is bool or not isinstance(value, bool)
    )
    if not fits:
        raise ConfigError(f"{where}: {name} = {value!r}: expected {hint.__name__}")


def option_defaults(kind: type[MixerOptions]) -> dict[str, Any]:
    """Name → default of every option of a mixer, for `evalsuite show mixers`."""
    return {field.name: field.default for field in dataclasses.fields(kind)}

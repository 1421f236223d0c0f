"""Mixer options: one frozen dataclass per mixer, named presets, and a parser that rejects anything else."""

import dataclasses
import typing
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal, TypeVar

from evalsuite.foundation import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class MixerOptions:
    """Options common to all recurrent mixers; a mixer changes the defaults and adds its own."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {"house": {}}
    """Named sets of values: `house`, the defaults, which each mixer has; `native`, the layer of the paper and
    its authors' code, in the teacher's widths. A recipe names one as `preset` and may override options."""

    least: ClassVar[dict[str, int]] = {
        "short_conv": 0,
        "num_heads": 0,
        "num_qk_heads": 0,
        "gate_rank": -1,
        "window": 0,
        "window_sinks": 0,
    }
    """Least values of counts."""

    num_heads: int = 0
    """Query heads; 0 for the teacher's. The channels of the teacher's queries are divided among them."""
    num_qk_heads: int = 0
    """Heads of queries and keys, each shared by several heads of values as in Mamba-2; 0 for one per head."""
    expand_k: float = 1.0
    """Width of a head's queries and keys, as a multiple of the teacher's. The teacher's channels come first;
    the others start at random, with the same mean square, and are not rotated, unless by `rotary_base`."""
    expand_v: float = 1.0
    """Width of a head's values, as a multiple of the teacher's, which come first."""
    expand_kv: bool = True
    """Give each query head its own key and value head (copies of full heads of the teacher's groups)."""
    teacher_qk_norm: bool = True
    """Keep the learned norm of queries and keys of a teacher that has one (Qwen3)."""
    rotary: bool = False
    """Apply the teacher's rotary position embedding to q and k."""
    rotary_base: float = 0.0
    """Base of a rotary embedding over all channels of the mixer's own heads, in every layer, such as RetNet's
    10000; 0 for the teacher's embedding. Needs `rotary: true`."""
    short_conv: int = 4
    """Kernel size of the depthwise convolutions of q, k and v; 0 for none. Initialised to the identity."""
    activation: Literal["silu", "none"] = "silu"
    """Activation of q and k after the convolution."""
    v_activation: Literal["silu", "none"] = "none"
    """Activation of v after the convolution."""
    qk_norm: Literal["l2", "none"] = "l2"
    """Normalisation of each head of q and k to length one."""
    scale: Literal["one", "head_dim"] = "one"
    """Factor on the queries: 1, or K ** -0.5 with K the width of the keys after the feature map."""
    output_gate: Literal["silu", "sigmoid", "none"] = "silu"
    """Activation of the output gate. Its bias is initialised so that the gate is about one (arXiv 2603.26556,
    section 4.1)."""
    gate_rank: int = 0
    """Rank of the output gate's projection; 0 is full rank, −1 the teacher's head_dim."""
    gate_bias: bool = True
    """Whether the output gate has a bias. Without one it starts at random instead of as the identity."""
    output_norm: Literal["none", "rms", "layer", "group", "rms_all_heads"] = "none"
    """Norm of the output: RMS norm of each head with one weight for all heads (fla), layer norm of each head
    with a weight per head (xLSTM) or without weight (MetaLA), or one RMS norm over all heads (HGRN2)."""
    window: int = 0
    """Add softmax attention over this many latest tokens, the query's own included; 0 for none. See
    `window_branch`."""
    window_sinks: int = 0
    """Number of first tokens that the window's queries attend to as well."""

    def __init_subclass__(cls) -> None:
        cls.presets = MixerOptions.presets | cls.presets

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be {least} or more")
        for name in ("expand_k", "expand_v"):
            if not 0 < getattr(self, name) <= 16:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be above 0 and at most 16")
        if self.rotary_base != 0 and not 1 < self.rotary_base < inf:
            raise ConfigError(f"rotary_base = {self.rotary_base}: must be 0 or above 1, and finite")
        if self.rotary_base and not self.rotary:
            raise ConfigError(f"rotary_base = {self.rotary_base}: has no effect without rotary: true")
        if self.rotary_base and self.window:
            raise ConfigError(
                f"rotary_base = {self.rotary_base}: a window attends with the teacher's rotary embedding; "
                "set window: 0"
            )
        if self.window_sinks and not self.window:
            raise ConfigError(f"window_sinks = {self.window_sinks}: needs a window; set window to 1 or more")


ADDITIVE_NATIVE: dict[str, Any] = {
    "short_conv": 0,
    "activation": "none",
    "qk_norm": "none",
    "scale": "head_dim",
    "gate_bias": False,
    "output_norm": "rms",
}
"""What fla's layers of the additive family share (retention, GLA): no convolution, RMS norm, SiLU gate."""

DELTA_NATIVE: dict[str, Any] = {
    "v_activation": "silu",
    "scale": "head_dim",
    "gate_bias": False,
    "output_norm": "rms",
}
"""What fla's layers of the delta-rule family share: SiLU after the convolutions of q, k and v, RMS norm."""


OptionsType = TypeVar("OptionsType", bound="MixerOptions")


def parse_options(kind: type[OptionsType], values: dict[str, Any], where: str) -> OptionsType:
    """Build `kind` from a recipe's values, on top of the preset that they name (`house` if none).

    Raises:
        ConfigError: an unknown option or preset (the message names the nearest one), or a value of the wrong
            type or outside the choices; the message starts with `where`.
    """
    hints = option_types(kind)
    presets: dict[str, dict[str, Any]] = getattr(kind, "presets", {})
    if presets and "preset" in values:
        preset = values["preset"]
        if not isinstance(preset, str) or preset not in presets:
            raise ConfigError(f"{where}: unknown preset {preset!r}{nearest(str(preset), presets)}")
        values = {**presets[preset], **{name: value for name, value in values.items() if name != "preset"}}
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(
                f"{where}: unknown option '{name}' = {value!r}{nearest(name, [*hints, 'preset'])}"
            )
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
    kinds = typing.get_args(hint) or (hint,)
    fits = isinstance(value, (*kinds, int) if float in kinds else kinds) and (
        bool in kinds or not isinstance(value, bool)
    )
    if not fits:
        raise ConfigError(f"{where}: {name} = {value!r}: expected {kinds[0].__name__}")


def option_types(kind: type) -> dict[str, Any]:
    """Name → type of every option of a mixer."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def option_defaults(kind: type) -> dict[str, Any]:
    """Name → default of every option of a mixer, for `evalsuite show mixers`."""
    return {field.name: field.default for field in dataclasses.fields(kind)}

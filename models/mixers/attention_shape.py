"""Shape of a teacher's attention layer, read from the module itself rather than guessed from the config."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.ops.rms_norm import Gain


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes, biases and norms of the attention layer that a mixer replaces."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_bias: bool
    k_bias: bool
    v_bias: bool
    o_bias: bool
    qk_norm: Literal["head", "all_heads"] | None
    """Norm of queries and keys: of each head (Qwen3, Gemma 3), of all heads together (OLMo 2), or none."""
    rotary: bool
    """Whether queries and keys are rotated; SmolLM3 does not in every fourth layer."""
    norm_eps: float
    scaling: float | None = None
    """Factor on the products of queries and keys; None for head_dim ** -0.5."""
    norm_gain: Gain | None = None
    """How the weights of the teacher's norms multiply, if known."""
    soft_cap: float | None = None
    """Soft cap of the scores, cap · tanh(score / cap) (Gemma 2)."""
    kv_group_sizes: tuple[int, ...] | None = None
    """Query heads of each key and value head, where they differ (see `divide_attention`)."""

    @property
    def num_kv_groups(self) -> int:
        """Query heads per key and value head, the most where they differ."""
        return max(self.kv_group_sizes or [self.num_heads // self.num_kv_heads])

    @classmethod
    def from_attention(
        cls, attention: nn.Module, norm_eps: float, layer: int, norm_gain: Gain | None = None
    ) -> "AttentionShape":
        """Read the shape of a Llama-style attention module.

        Args:
            attention: module with linear `q_proj`, `k_proj`, `v_proj`, `o_proj` and an integer `head_dim`.
            norm_eps: epsilon of the teacher's norms.
            layer: layer index, for error messages.
            norm_gain: how the weights of the teacher's norms multiply, if known.

        Raises:
            ConfigError: a projection or `head_dim` is missing, or the channels do not divide into heads.
        """
        head_dim = getattr(attention, "head_dim", None)
        if not isinstance(head_dim, int):
            raise ConfigError(f"layer {layer}: {type(attention).__name__} has no head_dim{_SUPPORTED}")
        q, k, v, o = (_linear(attention, f"{letter}_proj", layer) for letter in "qkvo")
        heads, kv_heads = q.out_features // head_dim, k.out_features // head_dim
        sizes: tuple[int, ...] | None = getattr(attention, "kv_group_sizes", None)
        uneven = sizes if sizes is not None and len(set(sizes)) > 1 else None
        divides = heads * head_dim == q.out_features and kv_heads * head_dim == k.out_features
        if not divides or (uneven is None and heads % kv_heads):
            raise ConfigError(
                f"layer {layer}: {q.out_features} query and {k.out_features} key channels do not divide into "
                f"heads of {head_dim} with whole groups"
            )
        norm: Any = getattr(attention, "q_norm", None)
        gain = getattr(norm, "weight", None)
        spans_heads = heads > 1 and gain is not None and gain.numel() == q.out_features
        return cls(
            hidden_size=q.in_features,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            q_bias=q.bias is not None,
            k_bias=k.bias is not None,
            v_bias=v.bias is not None,
            o_bias=o.bias is not None,
            qk_norm=None if norm is None else "all_heads" if spans_heads else "head",
            rotary=bool(getattr(attention, "use_rope", True)),
            norm_eps=norm_eps,
            norm_gain=norm_gain,
            scaling=getattr(attention, "scaling", None),
            soft_cap=getattr(attention, "attn_logit_softcapping", None),
            kv_group_sizes=uneven,
        )


def divide_heads(shape: AttentionShape, options: MixerOptions, where: str) -> tuple[int, int, int, int, int]:
    """Divide the teacher's channels among the heads that `options` ask for.

    Returns:
        Heads, heads of values, channels per head (the teacher's, or what `num_heads` makes of them), and the
        widths of a head's keys and of its values.

    Raises:
        ConfigError: the channels do not divide, the teacher's rotary embedding or QK-norm has not the heads'
            width, or that is odd with a `rotary_base`; the message starts with `where`.
    """
    num_heads = options.num_heads or shape.num_heads
    head_dim = _divide(shape.num_heads * shape.head_dim, num_heads, f"{where}: num_heads = {num_heads}")
    num_kv_heads = num_heads
    if not options.expand_kv:
        num_kv_heads = _divide(shape.num_kv_heads * shape.head_dim, head_dim, f"{where}: expand_kv = False")
        _divide(num_heads, num_kv_heads, f"{where}: {num_kv_heads} key and value heads")
    if options.num_qk_heads:
        _divide(num_heads, options.num_qk_heads, f"{where}: num_qk_heads = {options.num_qk_heads}")
    widths = []
    for name, factor in (("expand_k", options.expand_k), ("expand_v", options.expand_v)):
        if not (head_dim * factor).is_integer():
            raise ConfigError(f"{where}: {name} = {factor} makes {head_dim * factor} channels of {head_dim}")
        widths.append(int(head_dim * factor))
    if shape.qk_norm == "all_heads" and options.teacher_qk_norm and options.num_qk_heads:
        raise ConfigError(
            f"{where}: num_qk_heads = {options.num_qk_heads}: the teacher's QK-norm spans all of its "
            "heads; set teacher_qk_norm: false"
        )
    if options.rotary_base and widths[0] % 2:
        raise ConfigError(
            f"{where}: rotary_base = {options.rotary_base}: pairs of channels are rotated, the heads have "
            f"{widths[0]}"
        )
    if widths[0] != shape.head_dim:
        # Heads of the teacher's channels and more rotate the teacher's.
        is_wider = head_dim == shape.head_dim and widths[0] > head_dim
        rotates = options.rotary and not options.rotary_base and shape.rotary
        for used, what, remedy in (
            (rotates and not is_wider, "rotary embedding", "rotary: false, or a rotary_base"),
            (bool(options.window), "width of queries and keys", "window: 0"),
            (
                shape.qk_norm is not None and options.teacher_qk_norm,
                "QK-norm",
                "teacher_qk_norm: false",
            ),
        ):
            if used:
                raise ConfigError(
                    f"{where}: the teacher's {what} has {shape.head_dim} channels, the heads have "
                    f"{widths[0]}; set {remedy}"
                )
    return num_heads, num_kv_heads, head_dim, widths[0], widths[1]


def _divide(channels: int, parts: int, where: str) -> int:
    if channels % parts:
        raise ConfigError(f"{where}: {channels} do not divide into {parts} equal parts")
    return channels // parts


_SUPPORTED = "; supported are attention modules with the names of Llama's"


def _linear(attention: nn.Module, name: str, layer: int) -> nn.Linear:
    found = getattr(attention, name, None)
    if not isinstance(found, nn.Linear):
        raise ConfigError(f"layer {layer}: {type(attention).__name__} has no {name}{_SUPPORTED}")
    return found

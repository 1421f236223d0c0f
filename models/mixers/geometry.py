"""The shape of a teacher's attention layer, read from the module itself and not guessed from the config."""

from dataclasses import dataclass

from torch import Tensor, nn

from evalsuite.foundation import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything a mixer needs to know of the attention that it replaces."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    q_bias: bool
    k_bias: bool
    v_bias: bool
    o_bias: bool
    qk_norm: bool
    norm_eps: float

    @property
    def groups(self) -> int:
        """Query heads per key and value head."""
        return self.heads // self.kv_heads


def geometry_of(attention: nn.Module, norm_eps: float, layer: int) -> Geometry:
    """Read the geometry of a Llama-style attention module.

    Raises:
        ConfigError: the module has no q, k, v and o projections, or its heads do not divide.
    """
    head_dim = getattr(attention, "head_dim", None)
    if not isinstance(head_dim, int):
        raise ConfigError(f"layer {layer}: {type(attention).__name__} has no head_dim{_KNOWN}")
    q, k, v, o = (_linear(attention, f"{letter}_proj", layer) for letter in "qkvo")
    heads, kv_heads = q.out_features // head_dim, k.out_features // head_dim
    if heads * head_dim != q.out_features or kv_heads * head_dim != k.out_features or heads % kv_heads:
        raise ConfigError(
            f"layer {layer}: {q.out_features} query and {k.out_features} key channels do not divide into "
            f"heads of {head_dim} with whole groups"
        )
    return Geometry(
        hidden=q.in_features,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        q_bias=q.bias is not None,
        k_bias=k.bias is not None,
        v_bias=v.bias is not None,
        o_bias=o.bias is not None,
        qk_norm=hasattr(attention, "q_norm"),
        norm_eps=norm_eps,
    )


_KNOWN = "; known are attention modules of the Llama, Mistral, Qwen2 and Qwen3 kind"


def _linear(attention: nn.Module, name: str, layer: int) -> nn.Linear:
    found = getattr(attention, name, None)
    if not isinstance(found, nn.Linear):
        raise ConfigError(f"layer {layer}: {type(attention).__name__} has no {name}{_KNOWN}")
    return found


def expand_heads(weight: Tensor, geometry: Geometry) -> Tensor:
    """Repeat the rows of a key or value projection by whole heads, so that query head h finds the head of
    its group: [kv_heads · head_dim, …] → [heads · head_dim, …].

    Repeating single rows instead scrambles every head of a grouped-query teacher.
    """
    tail = weight.shape[1:]
    by_head = weight.reshape(geometry.kv_heads, geometry.head_dim, *tail)
    return by_head.repeat_interleave(geometry.groups, 0).reshape(-1, *tail)

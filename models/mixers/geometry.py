"""The shape of a teacher's attention layer, read from the module itself and not guessed from the config."""

from dataclasses import dataclass

from torch import Tensor, nn

from evalsuite.foundation import ConfigError, nearest


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


KV_EXPANSIONS = ("heads", "head_size_32", "rows")
"""How key and value heads are repeated; all but the first repeat defects of published code."""


def expand_heads(weight: Tensor, geometry: Geometry, how: str = "heads") -> Tensor:
    """Repeat the rows of a key or value projection, so that query head h finds the head of its group:
    [kv_heads · head_dim, …] → [heads · head_dim, …].

    Args:
        how: `heads` repeats whole heads, which is right. `head_size_32` takes 32 rows for a head, as the
            code of arXiv 2504.14366 does: with heads of 64, two of three query heads of SmolLM2-135M start
            from halves of the wrong one. `rows` repeats single rows, as fla-org/hybrid-distillation does:
            every head of a grouped-query teacher is scrambled. Both are there to measure what they cost.

    Raises:
        ConfigError: an unknown expansion, or rows that do not divide into heads of 32.
    """
    if how not in KV_EXPANSIONS:
        raise ConfigError(f"kv_expansion = '{how}'{nearest(how, KV_EXPANSIONS)}")
    size = {"heads": geometry.head_dim, "head_size_32": 32, "rows": 1}[how]
    if weight.shape[0] % size:
        raise ConfigError(f"kv_expansion = '{how}': {weight.shape[0]} rows do not divide into heads of 32")
    tail = weight.shape[1:]
    blocks = weight.reshape(-1, size, *tail)
    return blocks.repeat_interleave(geometry.groups, 0).reshape(-1, *tail)

"""Softmax heads in a recurrent layer, an intra-layer hybrid by heads (arXiv 2602.11374).

    o_t = W_o[S] · attention of the heads S + the recurrent mixer in place of all other heads

The output of attention is a sum over heads, each through its own columns of the output projection. A layer
therefore splits into two layers with fewer heads, whose outputs are added: the softmax heads are the
teacher's to the last weight, whatever the mixer's norms and gates do, and no state is computed or stored for
them. The cache holds keys and values of those key and value heads alone that a softmax head reads.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.attention_shape import AttentionShape
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.cached_attention import AttentionMasks
from evalsuite.models.mixers.interface import CacheSpec, Mixer
from evalsuite.models.mixers.softmax import SoftmaxMixer


class SoftmaxHeadsMixer(Mixer):
    """A recurrent mixer that leaves some of the teacher's heads as they are.

    It has the name of the recurrent mixer.

    Args:
        softmax: attention of the heads that stay softmax.
        recurrent: in place of the other heads.
        heads: the first part's query heads, in ascending order.
        num_heads: the teacher's.

    Raises:
        ConfigError: a recurrent mixer that cannot be divided by heads; the message names layer and option.
    """

    softmax_heads: tuple[int, ...]

    def __init__(
        self, softmax: SoftmaxMixer, recurrent: RecurrentMixer, heads: Sequence[int], num_heads: int
    ) -> None:
        super().__init__()
        self.softmax, self.recurrent = softmax, recurrent
        self.softmax_heads, self.num_heads, self.layer_idx = tuple(heads), num_heads, recurrent.layer_idx
        self.name, self.Options = recurrent.name, recurrent.Options  # type: ignore[misc]
        self.display_name = f"{recurrent.display_name} with softmax heads"  # type: ignore[misc]
        self.state_kind, self.span = recurrent.state_kind | softmax.state_kind, softmax.span
        where = f"layer {self.layer_idx}: softmax heads in a layer of {self.name} with "
        options = recurrent.options
        if recurrent.spans_layers:
            raise ConfigError(f"{where}learned_lower_bounds = True, which layers share; set it to false")
        if options.window:
            raise ConfigError(f"{where}window = {options.window}: set window: 0, or choose other layers")
        if options.rotary_base:
            raise ConfigError(
                f"{where}rotary_base = {options.rotary_base}: both parts share the teacher's rotary "
                "embedding; set rotary_base: 0, or choose other layers"
            )
        if options.rotary and softmax.options.logit_scale_base:
            raise ConfigError(
                f"{where}rotary = True need positions, which logit_scale_base = "
                f"{softmax.options.logit_scale_base} of softmax takes the place of; set one of the two"
            )

    def copy_from_teacher(self, attention: nn.Module, init: str) -> None:
        shape = AttentionShape.from_attention(attention, 0.0, self.layer_idx)
        softmax, rest = divide_attention(attention, shape, self.softmax_heads)
        self.softmax.copy_from_teacher(softmax, init)
        self.recurrent.copy_from_teacher(rest, init)

    def position_embeddings(
        self, rotary: tuple[Tensor, Tensor], position_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.softmax.position_embeddings(rotary, position_ids)

    def cache_spec(self) -> CacheSpec:
        """A state, and keys and values of the softmax heads."""
        kept, state = self.softmax.cache_spec(), self.recurrent.cache_spec()
        return CacheSpec(states=state.states, kv_width=kept.kv_width, span=kept.span)

    def mixing_flops(self, length: int) -> float:
        return self.softmax.mixing_flops(length) + self.recurrent.mixing_flops(length)

    def flops(self, length: int) -> float:
        return self.softmax.flops(length) + self.recurrent.flops(length)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | AttentionMasks | None = None,
        **shared: Any,
    ) -> tuple[Tensor, None]:
        """Mix tokens, with the signature of transformers' attention modules; see those of the two parts."""
        use_cache = shared.pop("use_cache", None)
        # Before the recurrence, which waits for the process of an earlier part of the sequences.
        attended, _ = self.softmax(hidden_states, position_embeddings, attention_mask, **shared)
        mixed, _ = self.recurrent(hidden_states, position_embeddings, use_cache=use_cache, **shared)
        return mixed + attended, None

    def attention_matrix(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The matrices and values of both parts, in the order of the teacher's heads if the recurrent mixer
        has as many as it replaces; narrower values are filled up with zeros."""
        parts = [
            part.attention_matrix(hidden_states, position_embeddings, token_mask)
            for part in (self.softmax, self.recurrent)
        ]
        width = max(values.shape[-1] for _, values in parts)
        weights = [each for matrix, _ in parts for each in matrix.unbind(1)]
        values = [each for _, part in parts for each in pad(part, [0, width - part.shape[-1]]).unbind(2)]
        order = list(range(len(weights)))
        if len(weights) == self.num_heads:
            owners = [*self.softmax_heads, *other_heads(self.num_heads, self.softmax_heads)]
            order = sorted(order, key=owners.__getitem__)
        return torch.stack([weights[i] for i in order], 1), torch.stack([values[i] for i in order], 2)


def other_heads(num_heads: int, heads: Sequence[int]) -> list[int]:
    """The query heads of a layer that are not in `heads`."""
    return [head for head in range(num_heads) if head not in heads]


def check_heads(
    heads: Sequence[int], shape: AttentionShape, kind: type[Mixer], options: Any, where: str
) -> None:
    """Raise ConfigError for heads that cannot stay softmax in a layer of `kind`; it starts with `where`."""
    given = f"{where}: softmax_heads = {list(heads)}"
    if not issubclass(kind, RecurrentMixer):
        raise ConfigError(f"{given}: only layers with a recurrent mixer have softmax heads")
    if list(heads) != sorted(set(heads)) or not 0 <= heads[0] <= heads[-1] < shape.num_heads:
        raise ConfigError(f"{given}: must be some of heads 0 to {shape.num_heads - 1}, each once, in order")
    if len(heads) == shape.num_heads:
        raise ConfigError(f"{given}: these are all heads; make the layer softmax")
    if shape.qk_norm == "all_heads":
        raise ConfigError(f"{given}: the teacher's QK-norm spans all heads, which are not computed any more")
    left = Counter(head // shape.num_kv_groups for head in other_heads(shape.num_heads, heads))
    if len(set(left.values())) > 1 and not options.expand_kv:
        counts = ", ".join(map(str, left.values()))
        raise ConfigError(
            f"{given}: leave {counts} heads on the teacher's key and value heads; expand_kv = False needs as "
            "many on each: set expand_kv: true, or choose other heads"
        )


def divide_attention(
    attention: nn.Module, shape: AttentionShape, heads: Sequence[int]
) -> tuple[nn.Module, nn.Module]:
    """Divide a teacher's attention into that of `heads` and that of its other heads.

    Each part has its heads' slices of the projections, and each key and value head once. If the other heads
    do not have the same number of query heads per key and value head, each gets its own copy of these, as
    recurrent mixers have anyway (`expand_kv`). The bias of the output is the second part's.

    Args:
        attention: with the names of Llama's.
        shape: its shape.
        heads: some of its query heads, in ascending order.
    """
    groups = shape.num_kv_groups
    softmax = Counter(head // groups for head in heads)
    kept = _narrow(attention, shape.head_dim, heads, list(softmax), has_o_bias=False)
    kept.kv_group_sizes = tuple(softmax.values())
    rest = other_heads(shape.num_heads, heads)
    recurrent = Counter(head // groups for head in rest)
    whole = len(set(recurrent.values())) == 1
    kv_heads = list(recurrent) if whole else [head // groups for head in rest]
    return kept, _narrow(attention, shape.head_dim, rest, kv_heads, has_o_bias=True)


def _narrow(
    attention: nn.Module, head_dim: int, heads: Sequence[int], kv_heads: Sequence[int], *, has_o_bias: bool
) -> Any:
    narrow = copy(attention)
    narrow._modules = dict(attention._modules)
    for letter, chosen in (("q", heads), ("k", kv_heads), ("v", kv_heads), ("o", heads)):
        whole: Any = attention._modules[f"{letter}_proj"]
        dim = int(letter == "o")
        channels = [head * head_dim + channel for head in chosen for channel in range(head_dim)]
        index = torch.tensor(channels, device=whole.weight.device)
        weight, bias = whole.weight.detach().index_select(dim, index), whole.bias
        if bias is not None and letter != "o":
            bias = bias.detach().index_select(0, index)
        elif not has_o_bias:
            bias = None
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight)
        linear.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach()))
        narrow._modules[f"{letter}_proj"] = linear
    return narrow

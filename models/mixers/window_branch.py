"""Softmax attention over the latest tokens inside a recurrent layer, an intra-layer hybrid.

    o_t = ½ · recurrence(q, k, v)_t + ½ · attention(q, k, v over the window and the sinks)_t

before output norm, gate and projection. This is Liger attention (arXiv 2503.01496v2, Eqs. 9 and 10), where
the window has 64 tokens. Its recurrence has a softmax feature map and gates pooled
from the keys (Eqs. 6 and 7, Table 1); here it is the mixer's own. Both branches share projections and
values; the attention's queries and keys are the teacher's: normalised and rotated as there, before the
recurrence's convolutions, activations and feature maps.
"""

from typing import Any

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.interface import MixerState
from evalsuite.models.mixers.layers import repeat_heads
from evalsuite.models.mixers.window_state import attend_with_state, mix_values
from evalsuite.models.ops.numerics import soft_capped
from evalsuite.models.ops.rotary import rotary

SHARE = 0.5
"""Of the attention in the output."""


def window_heads(
    mixer: Any, q: Tensor, k: Tensor, position_embeddings: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys [B, T, H, K] from the projections [B, T, heads · K] of a recurrent mixer."""
    q, k = (repeat_heads(mixer.split_heads(x), mixer.num_heads) for x in (q, k))
    if not mixer.attention_shape.rotary:
        return q, k
    if position_embeddings is None:
        raise ConfigError("a recurrent layer with a window needs position_embeddings")
    return rotary(q, *position_embeddings), rotary(k, *position_embeddings)


def mix_window(
    mixer: Any,
    mixed: Tensor,
    heads: tuple[Tensor, Tensor],
    v: Tensor,
    *,
    state: MixerState | None,
    token_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    packed_mask: Any,
) -> tuple[Tensor, MixerState]:
    """Add the attention's share to the output `mixed` [B, T, H, V] of a mixer's recurrence.

    Args:
        heads: what `window_heads` returned; v: the values [B, T, H, V].
        packed_mask: with `cu_seqlens`, true where a query attends: bool [rows, 1, L, L], rows · L = T.

    Returns:
        The sum, and the new state (none for packed sequences).

    Raises:
        ConfigError: packed sequences that continue from a state.
    """
    v = v.to(heads[0].dtype)
    arguments = {"scale": _scale(mixer), "cap": mixer.attention_shape.soft_cap}
    if cu_seqlens is None:
        near, new = attend_with_state(
            *heads, v, span=mixer.span, state=state, token_mask=token_mask, **arguments
        )
    elif state is not None:
        raise ConfigError("a recurrent layer with a window cannot continue packed sequences")
    else:
        q, k, v = (x.reshape(len(packed_mask), -1, *x.shape[2:]).transpose(1, 2) for x in (*heads, v))
        near, new = mix_values(q, k, v, packed_mask, **arguments).transpose(1, 2).reshape(mixed.shape), {}
    return torch.lerp(mixed, near.to(mixed.dtype), SHARE), new


def mix_window_matrix(
    mixer: Any, weights: Tensor, heads: tuple[Tensor, Tensor], token_mask: Tensor | None
) -> Tensor:
    """The same for the recurrence's matrix [B, H, T, T]."""
    scores = torch.einsum("bthd,bshd->bhts", *heads) * _scale(mixer)
    near = mixer.span.softmax(soft_capped(scores, mixer.attention_shape.soft_cap), token_mask)
    return torch.lerp(weights, near.to(weights.dtype), SHARE)


def _scale(mixer: Any) -> float:
    """Factor on the products of queries and keys: the teacher's."""
    return mixer.attention_shape.scaling or mixer.head_k_dim**-0.5

"""Softmax attention over the latest tokens inside a recurrent layer, an intra-layer hybrid.

    o_t = ½ · recurrence(q, k, v)_t + ½ · attention(q, k, v over the window and the sinks)_t

before output norm, gate and projection. This is Liger attention (arXiv 2503.01496v2, Eqs. 9 and 10), where
the window has 64 tokens. Its recurrence has a softmax feature map and gates pooled
from the keys (Eqs. 6 and 7, Table 1); here it is the mixer's own. Both branches share projections and
values; the attention's queries and keys are the teacher's: normalised and rotated as there, before the
recurrence's convolutions, activations and feature maps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.attention_shape import AttentionShape
from evalsuite.models.mixers.interface import AttentionSpan
from evalsuite.models.mixers.layers import repeat_heads
from evalsuite.models.mixers.window_state import attend_with_state, mix_values, state_shapes
from evalsuite.models.ops.numerics import soft_capped
from evalsuite.models.ops.rotary import rotary

SHARE = 0.5
"""Of the attention in the output."""


@dataclass(frozen=True)
class WindowBranch:
    """The attention of one layer; it has no parameters of its own."""

    shape: AttentionShape
    span: AttentionSpan
    num_heads: int
    head_k_dim: int
    head_v_dim: int

    @classmethod
    def of(cls, mixer: Any) -> "WindowBranch":
        """The branch of a recurrent mixer whose options have a window. Raises ConfigError without keys."""
        if not mixer.has_keys:
            raise ConfigError(
                f"layer {mixer.layer_idx}: {mixer.name} has no keys that a window could attend to; "
                "set window: 0"
            )
        return cls(mixer.attention_shape, mixer.span, mixer.num_heads, mixer.head_k_dim, mixer.head_v_dim)

    @property
    def scale(self) -> float:
        """Factor on the products of queries and keys: the teacher's."""
        return self.shape.scaling or self.head_k_dim**-0.5

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape per sequence of each part of the state."""
        return state_shapes(self.span, self.num_heads, self.head_k_dim, self.head_v_dim)

    def mix(
        self,
        mixed: Tensor,
        projected: tuple[Tensor, Tensor] | None,
        values: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None,
        **where: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add the attention's share to the output `mixed` [B, T, H, V] of the recurrence; see `attend`."""
        assert projected is not None
        near, state = self.attend(*self.heads(*projected, position_embeddings), values, **where)
        return torch.lerp(mixed, near.to(mixed.dtype), SHARE), state

    def mix_matrix(
        self,
        weights: Tensor,
        projected: tuple[Tensor, Tensor] | None,
        position_embeddings: tuple[Tensor, Tensor] | None,
        token_mask: Tensor | None,
    ) -> Tensor:
        """The same for the recurrence's matrix [B, H, T, T]."""
        assert projected is not None
        near = self.matrix(*self.heads(*projected, position_embeddings), token_mask)
        return torch.lerp(weights, near.to(weights.dtype), SHARE)

    def heads(
        self, q: Tensor, k: Tensor, position_embeddings: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys [B, T, H, K] from the projections [B, T, heads · K]."""
        q, k = (repeat_heads(x.unflatten(-1, (-1, self.head_k_dim)), self.num_heads) for x in (q, k))
        if not self.shape.rotary:
            return q, k
        if position_embeddings is None:
            raise ConfigError("a recurrent layer with a window needs position_embeddings")
        return rotary(q, *position_embeddings), rotary(k, *position_embeddings)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        state: Mapping[str, Tensor] | None,
        token_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        packed_mask: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix the values [B, T, H, V]: the mixed values, and the new state (none for packed sequences).

        Raises:
            ConfigError: packed sequences that continue from a state.
        """
        if cu_seqlens is None:
            return attend_with_state(
                q,
                k,
                v,
                span=self.span,
                scale=self.scale,
                cap=self.shape.soft_cap,
                state=state,
                token_mask=token_mask,
            )
        if state is not None:
            raise ConfigError("a recurrent layer with a window cannot continue packed sequences")
        mask = self._mask(cu_seqlens, q) if packed_mask is None else packed_mask
        rows = mask.shape[0]
        q, k, v = (x.reshape(rows, -1, *x.shape[2:]).transpose(1, 2) for x in (q, k, v))
        out = mix_values(q, k, v, mask, self.scale, self.shape.soft_cap)
        return out.transpose(1, 2).reshape(1, -1, *out.shape[1::2]), {}

    def matrix(self, q: Tensor, k: Tensor, token_mask: Tensor | None) -> Tensor:
        """Attention matrix [B, H, T, T]; the rows of pads are zero."""
        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.scale
        scores = soft_capped(scores, self.shape.soft_cap)
        places = torch.arange(q.shape[1], device=q.device)[None]
        if token_mask is not None:
            places = token_mask.int().cumsum(1) - 1
        visible = self.span.visible(places[:, :, None], places[:, None])[:, None]
        if token_mask is not None:
            visible = visible & token_mask[:, None, None, :] & token_mask[:, None, :, None]
        return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()

    def _mask(self, cu_seqlens: Tensor, q: Tensor) -> Tensor:
        """Mask of packed sequences: bool [1, 1, T, T]."""
        token = torch.arange(q.shape[1], device=q.device)
        sequence = torch.searchsorted(cu_seqlens[1:], token, right=True)
        place = token - cu_seqlens[sequence]
        same = sequence[:, None] == sequence
        return (self.span.visible(place[:, None], place) & same)[None, None]

"""Softmax attention over the latest tokens and the first ones, with a state of constant size.

The first tokens are attention sinks (arXiv 2309.17453): softmax puts weight on them that no other token
needs, and a window without them changes what the teacher's layers compute.

State of a layer by name, each [B, …]: "sink_keys" and "sink_values" [B, H, sinks, D], "window_keys" and
"window_values" [B, H, window − 1, D] of the latest tokens, and "length" [B], the tokens seen. Slots of tokens
that do not exist, and of tokens of the window that are sinks, are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from evalsuite.models.mixers.interface import AttentionSpan
from evalsuite.models.ops.numerics import soft_capped

State = dict[str, Tensor]
BLOCKED_FROM = 2
"""Windows of new tokens from which attention runs in blocks."""


def state_shapes(
    span: AttentionSpan, heads: int, head_k_dim: int, head_v_dim: int
) -> dict[str, tuple[int, ...]]:
    """Shape per sequence of each part of the state."""
    assert span.window is not None
    parts = {"sink": span.sinks, "window": span.window - 1}
    shapes: dict[str, tuple[int, ...]] = {
        f"{part}_{kind}": (heads, size, width)
        for part, size in parts.items()
        for kind, width in (("keys", head_k_dim), ("values", head_v_dim))
    }
    return {**shapes, "length": ()}


def runs_in_blocks(span: AttentionSpan, length: int) -> bool:
    """Whether `length` new tokens are attended to in blocks, in linear time."""
    return span.window is not None and length > BLOCKED_FROM * span.window


def attend_with_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    span: AttentionSpan,
    scale: float,
    cap: float | None = None,
    state: Mapping[str, Tensor] | None,
    token_mask: Tensor | None,
) -> tuple[Tensor, State]:
    """Attend to the state and to the new tokens.

    Args:
        q: [B, T, H, D]; k, v: [B, T, H / groups, D].
        span: has a window.
        scale: factor on the products.
        cap: soft cap of the scores, cap · tanh(score / cap), if any.
        state: of the tokens before; None for none.
        token_mask: bool [B, T], the real tokens, contiguous in each row; None if all are real.

    Returns:
        The mixed values [B, T, H, D], undefined at pads, and the new state.
    """
    assert span.window is not None
    rows, length = q.shape[:2]
    real = q.new_ones(rows, length, dtype=torch.bool) if token_mask is None else token_mask
    seen = real.new_zeros(rows, dtype=torch.int32) if state is None else state["length"]
    positions = seen[:, None] + real.int().cumsum(1) - 1
    call = _Call(span, span.window, scale, cap, real, positions, seen, state)
    queries, keys, values = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    new = call.next_state(keys, values)
    if runs_in_blocks(span, length):
        out = call.attend_in_blocks(queries, keys, values, new)
    else:
        out = call.attend(queries, keys, values)
    return out.transpose(1, 2), new


@dataclass(frozen=True, slots=True)
class _Call:
    """New tokens and the state before them.

    Queries are [B, H, T, D], keys and values [B, H / groups, T, D].
    """

    span: AttentionSpan
    window: int
    scale: float
    cap: float | None
    real: Tensor
    """bool [B, T]."""
    positions: Tensor
    """Of the real tokens in their sequences [B, T]."""
    seen: Tensor
    """Tokens before [B]."""
    state: Mapping[str, Tensor] | None

    @property
    def sinks(self) -> Tensor:
        """Positions [B, sinks]."""
        return torch.arange(self.span.sinks, device=self.seen.device).expand(self.seen.shape[0], -1)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Compare every query with every key."""
        places, valid = self.positions, self.real
        if self.state is not None:
            keys, values = self._with_stored("keys", keys), self._with_stored("values", values)
            sinks, window = self.sinks, _window_positions(self.seen, self.span)
            places = torch.cat([sinks, window, places], 1)
            valid = torch.cat([sinks < self.seen[:, None], window >= self.span.sinks, valid], 1)
        # Pads see everything: a row without any key would be NaN, which spreads in the backward pass.
        visible = self.span.visible(self.positions[:, :, None], places[:, None]) & valid[:, None]
        visible = (visible | ~self.real[:, :, None])[:, None]
        return mix_values(queries, keys, values, visible, self.scale, self.cap)

    def attend_in_blocks(self, queries: Tensor, keys: Tensor, values: Tensor, new: State) -> Tensor:
        """The same in linear time: blocks of `window` queries see their own tokens, those of the block
        before, and the sinks, which the `new` state holds."""
        rows, length, size = queries.shape[0], queries.shape[2], self.window
        blocks = -(-length // size)
        rest = blocks * size - length

        def band(kind: str, tokens: Tensor) -> Tensor:
            """Sinks, and tokens with the `size` before: [B · blocks, H / groups, sinks + 2 · size, D]."""
            # A query sees size − 1 tokens before it, as many as are stored.
            if self.state is None:
                line = pad(tokens, [0, 0, size, rest])
            else:
                line = pad(torch.cat([self.state[f"window_{kind}"], tokens], 2), [0, 0, 1, rest])
            bands = line.unfold(2, 2 * size, size).permute(0, 2, 1, 4, 3).flatten(0, 1)
            return torch.cat([new[f"sink_{kind}"].repeat_interleave(blocks, 0), bands], 2)

        stored = pad(_window_positions(self.seen, self.span), [1, 0], value=-1)
        places = torch.cat([stored, torch.where(self.real, self.positions, -1)], 1)
        # Sinks are seen once, as sinks.
        places = torch.where(places < self.span.sinks, -1, places)
        places = pad(places, [0, rest], value=-1).unfold(1, 2 * size, size)
        sinks = torch.where(self.sinks < new["length"][:, None], self.sinks, -1)
        places = torch.cat([sinks[:, None].expand(-1, blocks, -1), places], 2)[:, :, None]
        query_places = pad(self.positions, [0, rest]).view(rows, blocks, size, 1)
        padding = ~pad(self.real, [0, rest]).view(rows, blocks, size, 1)
        visible = self.span.visible(query_places, places) & (places >= 0) | padding
        blocked = pad(queries, [0, 0, 0, rest]).unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1)
        visible = visible.flatten(0, 1)[:, None]
        keys, values = band("keys", keys), band("values", values)
        out = mix_values(blocked, keys, values, visible, self.scale, self.cap)
        return out.unflatten(0, (rows, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]

    def _with_stored(self, kind: str, tokens: Tensor) -> Tensor:
        assert self.state is not None
        return torch.cat([self.state[f"sink_{kind}"], self.state[f"window_{kind}"], tokens], 2)

    def next_state(self, keys: Tensor, values: Tensor) -> State:
        """The state after the new tokens."""
        stored = 0
        if self.state is not None:
            keys, values = self._with_stored("keys", keys), self._with_stored("values", values)
            stored = self.span.sinks + self.window - 1
        seen, new_length = self.seen, self.seen + self.real.sum(1, dtype=torch.int32)
        # Position p lies among the new tokens, after pads on the left, or in its slot of the old state.
        first_new = stored + self.real.int().argmax(1)
        window = _window_positions(new_length, self.span)
        new = {"length": new_length}
        for part, wanted, old in (
            ("sink", self.sinks, self.sinks),
            ("window", window, stored - (seen[:, None] - window)),
        ):
            source = torch.where(wanted >= seen[:, None], first_new[:, None] + wanted - seen[:, None], old)
            source = source.clamp(0, keys.shape[2] - 1)[:, None, :, None].long()
            exists = ((wanted >= 0) & (wanted < new_length[:, None]))[:, None, :, None]
            for kind, tensor in (("keys", keys), ("values", values)):
                taken = tensor.gather(2, source.expand(-1, tensor.shape[1], -1, tensor.shape[3]))
                new[f"{part}_{kind}"] = taken * exists
        return new


def mix_values(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, cap: float | None) -> Tensor:
    """Softmax attention [B, H, T, D] where `visible` [B, 1, T, S], with a soft cap of the scores if any."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
    if cap is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    scores = soft_capped(q @ k.transpose(2, 3) * scale, cap)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v


def _window_positions(length: Tensor, span: AttentionSpan) -> Tensor:
    """Positions [B, window − 1] of the latest tokens after `length` [B]; negative where there are none."""
    assert span.window is not None
    return length[:, None] - (span.window - 1) + torch.arange(span.window - 1, device=length.device)

"""Softmax attention over the latest tokens and the first ones, with a state of constant size.

The first tokens are attention sinks (arXiv 2309.17453): softmax puts weight on them that no other token
needs, and a window without them changes what the teacher's layers compute.

State of a layer by name, each [B, …]: "sink_keys" and "sink_values" [B, H, sinks, D], "window_keys" and
"window_values" [B, H, window − 1, D] of the latest tokens, and "length" [B], the tokens seen. Slots of tokens
that do not exist, and of tokens of the window that are sinks, are ignored.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from evalsuite.models.mixers.interface import AttentionSpan

State = dict[str, Tensor]


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
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    seen = real.new_zeros(rows, dtype=torch.int32) if state is None else state["length"]
    queries = seen[:, None] + real.int().cumsum(1) - 1
    places, valid, stored = queries, real, 0
    if state is not None:
        keys = torch.cat([state["sink_keys"], state["window_keys"], keys], 2)
        values = torch.cat([state["sink_values"], state["window_values"], values], 2)
        sinks = torch.arange(span.sinks, device=q.device).expand(rows, -1)
        window = _window_positions(seen, span)
        places = torch.cat([sinks, window, queries], 1)
        valid = torch.cat([sinks < seen[:, None], window >= span.sinks, real], 1)
        stored = span.sinks + span.window - 1
    # Pads see everything: a row without any key would be NaN, which spreads in the backward pass.
    visible = span.visible(queries[:, :, None], places[:, None]) & valid[:, None] | ~real[:, :, None]
    groups = q.shape[2] // k.shape[2]
    queried, all_keys, all_values = (
        q.transpose(1, 2),
        keys.repeat_interleave(groups, 1),
        values.repeat_interleave(groups, 1),
    )
    if cap is None:
        out = scaled_dot_product_attention(
            queried, all_keys, all_values, attn_mask=visible[:, None], scale=scale
        )
    else:
        scores = cap * torch.tanh(queried @ all_keys.transpose(2, 3) * scale / cap)
        out = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1) @ all_values
    new_length = seen + real.sum(1, dtype=torch.int32)
    # Position p lies among the new tokens, after pads on the left, or in its slot of the old state.
    first_new = stored + real.int().argmax(1)
    sinks = torch.arange(span.sinks, device=q.device).expand(rows, -1)
    window = _window_positions(new_length, span)
    new = {"length": new_length}
    for part, wanted, old in (
        ("sink", sinks, sinks),
        ("window", window, stored - (seen[:, None] - window)),
    ):
        source = torch.where(wanted >= seen[:, None], first_new[:, None] + wanted - seen[:, None], old)
        source = source.clamp(0, keys.shape[2] - 1)[:, None, :, None].long()
        exists = ((wanted >= 0) & (wanted < new_length[:, None]))[:, None, :, None]
        for kind, tensor in (("keys", keys), ("values", values)):
            taken = tensor.gather(2, source.expand(-1, tensor.shape[1], -1, tensor.shape[3]))
            new[f"{part}_{kind}"] = taken * exists
    return out.transpose(1, 2), new


def _window_positions(length: Tensor, span: AttentionSpan) -> Tensor:
    """Positions [B, window − 1] of the latest tokens after `length` [B]; negative where there are none."""
    assert span.window is not None
    return length[:, None] - (span.window - 1) + torch.arange(span.window - 1, device=length.device)

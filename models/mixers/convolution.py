"""Short causal depthwise convolutions of q, k and v, aware of pads, packed sequences and carried states.

The three convolutions have parameters of their own (named as in fla) and share one state: the last
kernel_size − 1 inputs of all channels, q | k | v.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.models.ops.dispatch import inference_kernels, use_triton
from evalsuite.models.ops.recurrence import OWN, StateAccess


class ShortConvolution(nn.Module):
    """Parameters of y_t = Σ_d w_d x_{t-d} per channel, optionally followed by SiLU.

    Initialised to the identity (all weight on the current token), so that the copied projection before it is
    not disturbed (arXiv 2603.26556, section 4.1). `apply_short_convolutions` computes it.
    """

    def __init__(self, channels: int, kernel_size: int, activation: Literal["silu"] | None) -> None:
        super().__init__()
        self.channels, self.kernel_size, self.activation = channels, kernel_size, activation
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))

    def reset_parameters(self) -> None:
        """Set the identity."""
        identity = torch.zeros_like(self.weight)
        identity[..., -1] = 1.0
        init.copy_(self.weight, identity)


def apply_short_convolutions(
    convolutions: Sequence[ShortConvolution],
    parts: Sequence[Tensor],
    state: Tensor | None,
    token_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    access: StateAccess = OWN,
) -> tuple[Sequence[Tensor], Tensor]:
    """Convolve each part with its convolution.

    Args:
        convolutions: of one kernel size; those with an activation come first.
        parts: inputs [B, T, Cᵢ], one per convolution.
        state: the last kernel_size − 1 inputs of each row before `parts`, [B, ΣCᵢ, kernel_size − 1]; None at
            the start.
        token_mask: real tokens [B, T], contiguous in each row; None if all are real.
        cu_seqlens: bounds [N + 1] of packed sequences (B = 1); a state then has N rows.
        access: where the rows' states lie in `state`, then [S, ΣCᵢ, kernel_size − 1], and whether new ones
            may be written over them; with slots `state` is returned.

    Returns:
        The outputs [B, T, Cᵢ], and the last kernel_size − 1 real inputs of each row (or packed sequence),
        [B or N, ΣCᵢ, kernel_size − 1].
    """
    kernel_size = convolutions[0].kernel_size
    full = cu_seqlens is None and (state is None or token_mask is None)
    slots = None if state is None else access.slots
    # A program of several tokens would overwrite the state that those of the same row still read.
    readable = slots is None or access.discards or parts[0].shape[1] == 1
    if full and readable and kernel_size > 1 and (kernels := inference_kernels(parts[0])):
        return _convolve_without_gradients(kernels, convolutions, parts, state, token_mask, access)
    if slots is not None:
        assert state is not None
        outputs, last = apply_short_convolutions(convolutions, parts, state[slots], token_mask, cu_seqlens)
        if not access.discards:
            state[slots] = last.to(state.dtype)
        return outputs, state
    # A row's state may belong in the middle of the row (after pads): only the torch path handles that.
    unpadded = token_mask is None and cu_seqlens is None
    per_part = (state is None or unpadded) and parts[0].shape[1] >= kernel_size > 1
    if per_part and use_triton(parts[0]):
        return _convolve_parts(convolutions, parts, state, token_mask, cu_seqlens)
    x = torch.cat(list(parts), -1)
    if token_mask is not None:
        x = x * token_mask.unsqueeze(-1)
    weight = torch.cat([convolution.weight.squeeze(1) for convolution in convolutions])
    num_activated = sum(convolution.channels for convolution in convolutions if convolution.activation)
    y, last = convolve(x, weight.to(x.dtype), num_activated, state, token_mask, cu_seqlens)
    return y.split([part.shape[-1] for part in parts], -1), last


def _convolve_without_gradients(
    kernels: Any,
    convolutions: Sequence[ShortConvolution],
    parts: Sequence[Tensor],
    state: Tensor | None,
    token_mask: Tensor | None,
    access: StateAccess,
) -> tuple[Sequence[Tensor], Tensor]:
    """`apply_short_convolutions` in one kernel, the states included."""
    rows, length = parts[0].shape[:2]
    step = state is not None and length == 1 and not access.discards
    own = access.in_place and state is not None and state.is_contiguous() and state.dtype == parts[0].dtype
    if step and (access.slots is not None or own):
        assert state is not None
        after = state
    else:
        channels = sum(convolution.channels for convolution in convolutions)
        after = parts[0].new_empty(rows, channels, convolutions[0].kernel_size - 1)
    outputs: Sequence[Tensor] = kernels.short_conv_step(
        parts,
        [convolution.weight.to(parts[0].dtype) for convolution in convolutions],
        token_mask,
        state,
        after,
        slots=None if state is None else access.slots,
        num_activated=sum(convolution.activation is not None for convolution in convolutions),
    )
    return outputs, after


def _convolve_parts(
    convolutions: Sequence[ShortConvolution],
    parts: Sequence[Tensor],
    state: Tensor | None,
    token_mask: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Sequence[Tensor], Tensor]:
    """`apply_short_convolutions` on CUDA, where a training step neither concatenates nor pads the parts."""
    from fla.modules.causal_conv1d import causal_conv1d

    length, past = parts[0].shape[1], convolutions[0].kernel_size - 1
    trains = past == 3 and cu_seqlens is None and torch.is_grad_enabled()
    outputs, states, start = [], [], 0
    for convolution, part in zip(convolutions, parts, strict=True):
        channels = slice(start, start + convolution.channels)
        start = channels.stop
        if token_mask is not None:
            part = part * token_mask.unsqueeze(-1)
        elif state is not None:
            part = torch.cat([state[:, channels].to(part.dtype).transpose(1, 2), part], 1)
        weight = convolution.weight.squeeze(1).to(part.dtype)
        if trains:
            from evalsuite.models.ops.short_conv import short_conv

            y = short_conv(part, weight, silu=convolution.activation is not None)
        else:
            y = causal_conv1d(part, weight, activation=convolution.activation, cu_seqlens=cu_seqlens)[0]
        # A full slice would still be copied in the backward pass.
        outputs.append(y if state is None else y[:, -length:])
        if cu_seqlens is not None:
            states.append(_packed_final_state(part, past, cu_seqlens))
        elif token_mask is not None:
            states.append(final_state(functional.pad(part, [0, 0, past, 0]), past, token_mask))
        else:
            states.append(part[:, -past:].transpose(1, 2))
    return outputs, torch.cat(states, 1)


def convolve(
    x: Tensor,
    weight: Tensor,
    num_activated: int,
    state: Tensor | None,
    token_mask: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Convolve x [B, T, C], whose pads are zero, by weight [C, kernel_size]; SiLU on the first channels.

    Returns:
        y [B, T, C] and the final state, as `apply_short_convolutions`.
    """
    past = weight.shape[1] - 1
    if cu_seqlens is not None and state is not None:
        return _convolve_packed(x, weight, num_activated, state, cu_seqlens)
    history = prepend_state(x, past, state, token_mask)
    if state is None and token_mask is None and use_triton(x) and x.shape[1] > 1:
        y = _fla_convolution(x, weight, num_activated, cu_seqlens)
    else:
        y = torch_convolution(history, weight, num_activated, x.shape[1], cu_seqlens)
    if cu_seqlens is not None:
        return y, _packed_final_state(x, past, cu_seqlens)
    return y, final_state(history, past, token_mask)


def _convolve_packed(
    x: Tensor, weight: Tensor, num_activated: int, state: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Continue packed sequences: each gets its state inserted before its first token."""
    past = weight.shape[1] - 1
    bounds = cu_seqlens.to(torch.long)
    sequence = torch.arange(state.shape[0], device=x.device)
    place = torch.arange(x.shape[1], device=x.device)
    place = place + past * torch.searchsorted(bounds, place, right=True)
    offsets = torch.arange(past, device=x.device)
    start = (bounds[:-1] + past * sequence).unsqueeze(1) + offsets
    row = x.new_zeros(1, x.shape[1] + past * state.shape[0], x.shape[2])
    row[0, place] = x[0]
    row[0, start] = state.to(x.dtype).transpose(1, 2)
    if use_triton(x):
        y = _fla_convolution(row, weight, num_activated, None)
    else:
        history = functional.pad(row, [0, 0, past, 0])
        y = torch_convolution(history, weight, num_activated, row.shape[1], None)
    end = (bounds[1:] + past * sequence).unsqueeze(1) + offsets
    return y[:, place], row[0, end].transpose(1, 2)


def _packed_final_state(x: Tensor, past: int, cu_seqlens: Tensor) -> Tensor:
    """The last `past` inputs of each packed sequence, zeros before its start: [N, C, past]."""
    bounds = cu_seqlens.to(torch.long).unsqueeze(1)
    at = bounds[1:] + torch.arange(-past, 0, device=x.device)
    inside = (at >= bounds[:-1]).unsqueeze(-1)
    return (x[0, at.clamp_min(0)] * inside).transpose(1, 2)


def prepend_state(x: Tensor, past: int, state: Tensor | None, token_mask: Tensor | None) -> Tensor:
    """[B, past + T, C]: the inputs, with each row's state before its first real token."""
    if state is not None and token_mask is None:
        return torch.cat([state.to(x.dtype).transpose(1, 2), x], 1)
    history = functional.pad(x, [0, 0, past, 0])
    if state is None:
        return history
    assert token_mask is not None
    start = token_mask.long().argmax(1)
    at = start.unsqueeze(1) + torch.arange(past, device=x.device)
    previous = state.to(x.dtype).transpose(1, 2)
    return history.scatter(1, at.unsqueeze(-1).expand_as(previous), previous)


def final_state(history: Tensor, past: int, token_mask: Tensor | None) -> Tensor:
    """The last `past` real inputs of each row of `history` [B, past + T, C]: [B, C, past]."""
    if token_mask is None:
        return history[:, history.shape[1] - past :].transpose(1, 2)
    # Position after the last real token, counted in `history`; 0 for a row without real tokens.
    count = token_mask.sum(1)
    end = torch.where(count > 0, token_mask.long().argmax(1) + count, 0)
    at = end.unsqueeze(1) + torch.arange(past, device=history.device)
    return history.gather(1, at.unsqueeze(-1).expand(-1, -1, history.shape[-1])).transpose(1, 2)


def torch_convolution(
    history: Tensor, weight: Tensor, num_activated: int, length: int, cu_seqlens: Tensor | None
) -> Tensor:
    """Convolve the last `length` places of `history` [B, past + T, C] in plain torch."""
    past = weight.shape[1] - 1
    if length == 1 and cu_seqlens is None:
        return _activate((history * weight.T).sum(1, keepdim=True), num_activated)
    y = history[:, past:] * weight[:, -1]
    position = None if cu_seqlens is None else packed_position_ids(cu_seqlens, length)
    for lag in range(1, past + 1):
        first = past - lag
        shifted = history[:, first : first + length] * weight[:, -1 - lag]
        if position is not None:
            shifted = shifted * (position >= lag).unsqueeze(-1)
        y = y + shifted
    return _activate(y, num_activated)


def _activate(y: Tensor, num_activated: int) -> Tensor:
    if not num_activated:
        return y
    if num_activated == y.shape[-1]:
        return functional.silu(y)
    active, plain = y.split([num_activated, y.shape[-1] - num_activated], -1)
    return torch.cat([functional.silu(active), plain], -1)


def _fla_convolution(x: Tensor, weight: Tensor, num_activated: int, cu_seqlens: Tensor | None) -> Tensor:
    from fla.modules.causal_conv1d import causal_conv1d

    outputs = []
    sizes = [num_activated, x.shape[-1] - num_activated]
    for part, kernel, activation in zip(x.split(sizes, -1), weight.split(sizes), ("silu", None), strict=True):
        if part.shape[-1]:
            outputs.append(
                causal_conv1d(
                    part.contiguous(), kernel.contiguous(), activation=activation, cu_seqlens=cu_seqlens
                )[0]
            )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


def packed_position_ids(cu_seqlens: Tensor, length: int) -> Tensor:
    """Position of each packed token in its own sequence, [T]."""
    token = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.long), token, right=True) - 1
    return token - cu_seqlens[sequence]

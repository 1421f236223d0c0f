"""Short convolutions on fla's kernel, of each part: a training step neither joins nor pads them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.recurrence import OWN, StateAccess
from evalsuite.models.ops.short_conv import final_state, insert_states, packed_final_state


def short_convolutions(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    num_activated: int,
    state: Tensor | None = None,
    token_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    access: StateAccess = OWN,
) -> tuple[Sequence[Tensor], Tensor]:
    length, past = parts[0].shape[1], weights[0].shape[-1] - 1
    outputs, states, start = [], [], 0
    for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        weight = weight.flatten(1).to(part.dtype)
        own = None if state is None else state[:, start : start + len(weight)]
        start += len(weight)
        silu = number < num_activated
        if own is not None and cu_seqlens is not None:
            row, place, end = insert_states(part, past, own, cu_seqlens)
            outputs.append(_convolve(row, weight, silu, None)[:, place])
            states.append(row[0, end].transpose(1, 2))
            continue
        if token_mask is not None:
            part = part * token_mask.unsqueeze(-1)
        elif own is not None:
            part = torch.cat([own.to(part.dtype).transpose(1, 2), part], 1)
        y = _convolve(part, weight, silu, cu_seqlens)
        # A full slice would still be copied in the backward pass.
        outputs.append(y if own is None else y[:, -length:])
        if cu_seqlens is not None:
            states.append(packed_final_state(part, past, cu_seqlens))
        elif token_mask is not None:
            states.append(final_state(functional.pad(part, [0, 0, past, 0]), past, token_mask))
        else:
            states.append(part[:, -past:].transpose(1, 2))
    return outputs, torch.cat(states, 1)


def _convolve(x: Tensor, weight: Tensor, silu: bool, cu_seqlens: Tensor | None) -> Tensor:
    if weight.shape[1] == 4 and cu_seqlens is None and torch.is_grad_enabled():
        from evalsuite.models.ops.short_conv.backward import ShortConv

        return ShortConv.apply(x, weight, silu)
    from fla.modules.causal_conv1d import causal_conv1d

    return causal_conv1d(x, weight, activation="silu" if silu else None, cu_seqlens=cu_seqlens)[0]

"""The short causal depthwise convolution before a recurrence, which knows where sequences start and end."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from evalsuite.models.recurrence import using_fla


class ShortConvolution(nn.Module):
    """y_t = Σ_d w_d x_{t-d} per channel, the first `activated` channels followed by SiLU.

    Starts as the identity (all weight on the current token), so that a copied projection is not disturbed
    (seed 003, section 4.1).
    """

    def __init__(self, channels: int, taps: int, activated: int) -> None:
        super().__init__()
        self.taps, self.activated = taps, activated
        self.weight = nn.Parameter(torch.empty(channels, taps))

    def forward(
        self, x: Tensor, state: Tensor | None, token_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Convolve.

        Args:
            x: [B, T, C]; pads must be zero already.
            state: the last taps − 1 inputs of each row before x, [B, C, taps − 1]; None at the start.
            token_mask: real tokens [B, T], contiguous in each row; None if all are real.
            cu_seqlens: bounds [N + 1] of packed sequences (B = 1); a state then has N rows.

        Returns:
            y [B, T, C], and the last taps − 1 real inputs of each row (or packed sequence),
            [B or N, C, taps − 1].
        """
        weight = self.weight.to(x.dtype)
        if cu_seqlens is not None and state is not None:
            return self._packed(x, weight, state, cu_seqlens)
        history = self._with_history(x, state, token_mask)
        if state is None and token_mask is None and using_fla(x) and x.shape[1] > 1:
            y = self._fla(x, weight, cu_seqlens)
        else:
            y = self._torch(history, weight, x.shape[1], cu_seqlens)
        return y, self._tail(history, token_mask) if cu_seqlens is None else self._packed_tail(x, cu_seqlens)

    def _packed(self, x: Tensor, weight: Tensor, state: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """Packed sequences that go on: spread out so that each has its own past before it."""
        past = self.taps - 1
        bounds = cu_seqlens.to(torch.long)
        sequence = torch.arange(state.shape[0], device=x.device)
        place = torch.arange(x.shape[1], device=x.device)
        place = place + past * torch.searchsorted(bounds, place, right=True)
        before = torch.arange(past, device=x.device)
        start = (bounds[:-1] + past * sequence).unsqueeze(1) + before
        row = x.new_zeros(1, x.shape[1] + past * state.shape[0], x.shape[2])
        row[0, place] = x[0]
        row[0, start] = state.to(x.dtype).transpose(1, 2)
        if using_fla(x):
            y = self._fla(row, weight, None)
        else:
            y = self._torch(functional.pad(row, [0, 0, past, 0]), weight, row.shape[1], None)
        end = (bounds[1:] + past * sequence).unsqueeze(1) + before
        return y[:, place], row[0, end].transpose(1, 2)

    def _packed_tail(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        """The last taps − 1 inputs of each packed sequence, zeros before its start: [N, C, taps − 1]."""
        bounds = cu_seqlens.to(torch.long).unsqueeze(1)
        at = bounds[1:] + torch.arange(1 - self.taps, 0, device=x.device)
        inside = (at >= bounds[:-1]).unsqueeze(-1)
        return (x[0, at.clamp_min(0)] * inside).transpose(1, 2)

    def split(
        self,
        parts: Sequence[Tensor],
        state: Tensor | None,
        token_mask: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Sequence[Tensor], Tensor]:
        """`forward` on channels that come, and are wanted, in parts [B, T, Cᵢ].

        A training step on CUDA then neither joins nor pads them; whole parts must be activated or not.
        """
        first = parts[0]
        past = self.taps - 1
        trains = self.taps == 4 and cu_seqlens is None and torch.is_grad_enabled()
        # A row's own past may have to stand in the middle of it (behind pads): that is left to torch.
        alone = token_mask is None and cu_seqlens is None
        fused = (state is None or alone) and first.shape[1] >= self.taps > 1
        if not fused or not using_fla(first):
            joint = torch.cat(list(parts), -1)
            if token_mask is not None:
                joint = joint * token_mask.unsqueeze(-1)
            y, tail = self(joint, state, token_mask, cu_seqlens)
            return y.split([part.shape[-1] for part in parts], -1), tail
        from fla.modules.causal_conv1d import causal_conv1d

        out, tails, at = [], [], 0
        for part in parts:
            channels = slice(at, at + part.shape[-1])
            at = channels.stop
            if token_mask is not None:
                part = part * token_mask.unsqueeze(-1)
            elif state is not None:
                part = torch.cat([state[:, channels].to(part.dtype).transpose(1, 2), part], 1)
            activation = "silu" if at <= self.activated else None
            taps = self.weight[channels].to(part.dtype)
            if trains:
                from evalsuite.models.mixers.kernels import convolution

                y = convolution(part, taps, silu=activation is not None)
            else:
                y = causal_conv1d(part, taps, activation=activation, cu_seqlens=cu_seqlens)[0]
            # A slice of everything would still be copied in the backward pass.
            out.append(y if state is None else y[:, -first.shape[1] :])
            if cu_seqlens is not None:
                tails.append(self._packed_tail(part, cu_seqlens))
            elif token_mask is not None:
                tails.append(self._tail(functional.pad(part, [0, 0, past, 0]), token_mask))
            else:
                tails.append(part[:, -past:].transpose(1, 2))
        return out, torch.cat(tails, 1)

    def _with_history(self, x: Tensor, state: Tensor | None, token_mask: Tensor | None) -> Tensor:
        """[B, taps − 1 + T, C]: the inputs with what came before the first real token of each row."""
        if state is not None and token_mask is None:
            return torch.cat([state.to(x.dtype).transpose(1, 2), x], 1)
        history = functional.pad(x, [0, 0, self.taps - 1, 0])
        if state is None:
            return history
        assert token_mask is not None
        start = token_mask.long().argmax(1)
        at = start.unsqueeze(1) + torch.arange(self.taps - 1, device=x.device)
        past = state.to(x.dtype).transpose(1, 2)
        return history.scatter(1, at.unsqueeze(-1).expand_as(past), past)

    def _tail(self, history: Tensor, token_mask: Tensor | None) -> Tensor:
        if token_mask is None:
            return history[:, history.shape[1] - self.taps + 1 :].transpose(1, 2)
        # The place after the last real token, counted in `history`; the start for a row without any.
        count = token_mask.sum(1)
        end = torch.where(count > 0, token_mask.long().argmax(1) + count, 0)
        at = end.unsqueeze(1) + torch.arange(self.taps - 1, device=history.device)
        return history.gather(1, at.unsqueeze(-1).expand(-1, -1, history.shape[-1])).transpose(1, 2)

    def _torch(self, history: Tensor, weight: Tensor, length: int, cu_seqlens: Tensor | None) -> Tensor:
        if length == 1 and cu_seqlens is None:
            return self._activate((history * weight.T).sum(1, keepdim=True))
        y = history[:, self.taps - 1 :] * weight[:, -1]
        position = None if cu_seqlens is None else positions(cu_seqlens, length)
        for lag in range(1, self.taps):
            first = self.taps - 1 - lag
            shifted = history[:, first : first + length] * weight[:, -1 - lag]
            if position is not None:
                shifted = shifted * (position >= lag).unsqueeze(-1)
            y = y + shifted
        return self._activate(y)

    def _activate(self, y: Tensor) -> Tensor:
        if not self.activated:
            return y
        if self.activated == y.shape[-1]:
            return functional.silu(y)
        active, plain = y.split([self.activated, y.shape[-1] - self.activated], -1)
        return torch.cat([functional.silu(active), plain], -1)

    def _fla(self, x: Tensor, weight: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        from fla.modules.causal_conv1d import causal_conv1d

        parts = []
        split = [self.activated, x.shape[-1] - self.activated]
        for piece, taps, activation in zip(
            x.split(split, -1), weight.split(split), ("silu", None), strict=True
        ):
            if piece.shape[-1]:
                parts.append(
                    causal_conv1d(
                        piece.contiguous(), taps.contiguous(), activation=activation, cu_seqlens=cu_seqlens
                    )[0]
                )
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def positions(cu_seqlens: Tensor, length: int) -> Tensor:
    """The place of each packed token in its own sequence, [T]."""
    token = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.long), token, right=True) - 1
    return token - cu_seqlens[sequence]

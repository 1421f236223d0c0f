"""What the one recurrence accepts, checked once for every backend."""

from typing import Literal

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError

Transition = Literal["none", "head", "scalar", "channel"]


def transition_of(k: Tensor, log_decay: Tensor | None) -> Transition:
    """Name the decay: none, one number per head, per head and token, or per channel and token."""
    if log_decay is None:
        return "none"
    batch, length, heads, width = k.shape
    if log_decay.shape == (heads,):
        return "head"
    if log_decay.shape == (batch, length, heads):
        return "scalar"
    if log_decay.shape == (batch, length, heads, width):
        return "channel"
    raise ConfigError(
        f"log_decay has shape {tuple(log_decay.shape)}; with keys {tuple(k.shape)} it must be "
        f"[{heads}], [{batch}, {length}, {heads}] or [{batch}, {length}, {heads}, {width}]"
    )


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Transition:
    """Check every shape and return the transition.

    Raises:
        ConfigError: a tensor does not fit; the message names it, its shape and the shape that would.
    """
    if q.shape != k.shape or v.shape[:3] != k.shape[:3]:
        raise ConfigError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} must be "
            "[B, T, H, K], [B, T, H, K] and [B, T, H, V]"
        )
    batch, length, heads, width = k.shape
    if beta is not None and beta.shape != (batch, length, heads):
        raise ConfigError(f"beta has shape {tuple(beta.shape)}; expected {(batch, length, heads)}")
    sequences = batch
    if cu_seqlens is not None:
        if batch != 1:
            raise ConfigError(f"cu_seqlens packs sequences into one row, but the batch has {batch} rows")
        sequences = cu_seqlens.numel() - 1
    expected = (sequences, heads, width, v.shape[-1])
    if initial_state is not None and initial_state.shape != expected:
        raise ConfigError(
            f"initial_state has shape {tuple(initial_state.shape)}; [sequences, H, K, V] must be {expected}"
        )
    return transition_of(k, log_decay)


def state_dtype(*tensors: Tensor | None) -> torch.dtype:
    """States are kept in float32, whatever the inputs; in float64 if an input is."""
    double = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if double else torch.float32

"""Shapes and dtypes that the recurrence accepts, validated once for all backends."""

from typing import Literal

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError

DecayShape = Literal["none", "head", "scalar", "channel"]


def decay_shape_of(k: Tensor, log_decay: Tensor | None) -> DecayShape:
    """Classify the decay: none, one number per head, per head and token, or per channel and token."""
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


def validate_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> DecayShape:
    """Validate all shapes and return the shape of the decay.

    Raises:
        ConfigError: a shape is wrong; the message names the tensor, its shape and the expected one.
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
            raise ConfigError(f"cu_seqlens requires one packed row, but the batch has {batch} rows")
        sequences = cu_seqlens.numel() - 1
    expected = (sequences, heads, width, v.shape[-1])
    if initial_state is not None and initial_state.shape != expected:
        raise ConfigError(
            f"initial_state has shape {tuple(initial_state.shape)}; [sequences, H, K, V] must be {expected}"
        )
    return decay_shape_of(k, log_decay)


def state_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Dtype of the state: float32, or float64 if an input is float64."""
    double = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if double else torch.float32

"""Arguments of the recurrence."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.recurrence import OWN, StateAccess, mask_padding, recurrence, recurrence_matrix


@dataclass(frozen=True, slots=True)
class RecurrenceInputs:
    """Arguments of the recurrence; shapes as in `evalsuite.models.ops.recurrence.recurrence`."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    beta: Tensor | None = None
    token_mask: Tensor | None = None
    skip: Tensor | None = None
    """Weight with which each token adds its own value to its output, [B, T, H] or [H]."""
    x: Tensor | None = None
    """Input of projections and output gate if the layer's input was convolved; None otherwise."""
    projected: tuple[Tensor, Tensor] | None = None
    """q and k [B, T, heads · K] before convolution and activation, if the layer has a window."""


def apply_recurrence(
    inputs: RecurrenceInputs,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    access: StateAccess = OWN,
    leaks: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence. Returns o [B, T, H, V] and the final states.

    Args:
        access: see `recurrence`.
        leaks: reproduce a defect of published code (Gated DeltaNet of arXiv 2504.14366, whose recurrence
            reads the bounds of sequences anew from the caller, where they are missing): the state runs on
            through all sequences of the batch, while convolutions respect their bounds. Training only, so
            that there is neither a cached state nor padding.
    """
    shape = inputs.v.shape
    if leaks:
        assert initial_state is None
        inputs, cu_seqlens = _as_one_row(inputs), None
    o, last = recurrence(
        inputs.q,
        inputs.k,
        inputs.v,
        log_decay=inputs.log_decay,
        beta=inputs.beta,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        token_mask=inputs.token_mask,
        access=access,
    )
    return o.view(shape) if leaks else o, last


def attention_matrix(inputs: RecurrenceInputs, scale: float) -> Tensor:
    """Materialise the recurrence over the values: A [B, H, T, T], with the skip on its diagonal."""
    k, log_decay, beta = inputs.k, inputs.log_decay, inputs.beta
    if inputs.token_mask is not None:
        k, log_decay, beta = mask_padding(k, log_decay, beta, inputs.token_mask)
    weights = recurrence_matrix(inputs.q, k, log_decay=log_decay, beta=beta, scale=scale)
    if inputs.skip is not None:
        skip = inputs.skip.expand(inputs.v.shape[:3]).transpose(1, 2)
        weights = weights + torch.diag_embed(skip.to(weights.dtype))
    return weights


def _as_one_row(inputs: RecurrenceInputs) -> RecurrenceInputs:
    """[B, T, …] → [1, B · T, …]; a decay that is fixed per head stays."""

    def joined(part: Tensor) -> Tensor:
        return part.flatten(0, 1).unsqueeze(0)

    decay, beta = inputs.log_decay, inputs.beta
    return RecurrenceInputs(
        joined(inputs.q),
        joined(inputs.k),
        joined(inputs.v),
        decay if decay is None or decay.dim() == 1 else joined(decay),
        None if beta is None else joined(beta),
    )


def validate_state(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], rows: int, where: str
) -> None:
    """Raise ConfigError, starting with `where`, if a state has not these shapes for `rows` sequences."""
    for name, shape in shapes.items():
        found = tuple(state[name].shape) if name in state else None
        if found != (rows, *shape):
            raise ConfigError(f"{where} received a {name} state of shape {found}; expected {(rows, *shape)}")

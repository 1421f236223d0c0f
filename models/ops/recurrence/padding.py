"""Padding among the tokens of the recurrence."""

from torch import Tensor


def mask_padding(
    k: Tensor, log_decay: Tensor | None, beta: Tensor | None, token_mask: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Make pads write nothing and decay nothing, so that the state passes them unchanged.

    Args:
        k, log_decay, beta: as in `evalsuite.models.ops.recurrence.recurrence`.
        token_mask: bool [B, T], the real tokens.

    Returns:
        k, log_decay and beta. With the delta rule β = 0 makes a token's write and its correction vanish,
        whatever its key.
    """
    real = token_mask[..., None]
    if log_decay is not None:
        per_token = log_decay.expand(*token_mask.shape, -1) if log_decay.dim() == 1 else log_decay
        log_decay = per_token * (real if per_token.dim() == 3 else real[..., None])
    if beta is None:
        return k * real[..., None], log_decay, None
    return k, log_decay, beta * real

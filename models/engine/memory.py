"""How much runs at once: a first size from the memory that is free, then halved until it fits."""

import os
from dataclasses import dataclass

import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.engine.forward import Decoder

SHARE = 0.6
"""Part of the free memory that is planned with; the rest is for what the estimate leaves out."""

LIMIT = "EVALSUITE_GPU_GIB"
"""Environment variable: most GiB that this process takes of a GPU which it shares with others."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the engine may hold at once.

    Args:
        tokens: padded tokens in one forward pass.
        floor: padded tokens below which a pass is not split because of padding.
        logits: logits (rows × vocabulary) at once.
        state_bytes: bytes for the slots of a generation.
        rows: most rows that decode together.
    """

    tokens: int
    floor: int
    logits: int
    state_bytes: int
    rows: int


def sizes(decoder: Decoder, parameters: int, batch_tokens: int | None) -> Sizes:
    """Choose sizes for a model on its device.

    On a GPU passes are large, bounded by memory; on a CPU they are small enough for the caches, since
    nothing is gained above a few thousand tokens.

    Args:
        decoder: the model.
        parameters: number of its parameters.
        batch_tokens: overrides the number of tokens in a pass.

    Raises:
        ConfigError: `LIMIT` is set to something else than a number.
    """
    rows = most_rows(decoder.device, parameters)
    if decoder.device.type == "cuda":
        free = SHARE * usable(decoder.device)
        per_token = decoder.activation_bytes() + decoder.token_bytes
        tokens = batch_tokens or int(min(131072, max(2048, free / 2 / per_token)))
        return Sizes(tokens, tokens // 4, 1 << 28, int(free / 2), rows)
    tokens = batch_tokens or 4096
    return Sizes(tokens, tokens // 2 if decoder.packs else 512, 1 << 23, 2 << 30, rows)


def most_rows(device: torch.device, parameters: int) -> int:
    """Rows that decode together where memory allows."""
    if device.type == "cuda":
        return 512
    # A step over this many rows is about as long as reading the weights once, or as Python's overhead.
    return int(min(256, max(32, 4e9 / parameters)))


def usable(device: torch.device) -> float:
    """Free bytes of a GPU, at most what `LIMIT` says; beyond that this process is then refused memory."""
    free, total = torch.cuda.mem_get_info(device)
    said = os.environ.get(LIMIT)
    if not said:
        return free
    try:
        limit = float(said) * 2**30
    except ValueError:
        limit = 0.0
    if limit <= 0:
        raise ConfigError(f"{LIMIT}={said!r}: must be a number of GiB above 0")
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    return min(free, limit)

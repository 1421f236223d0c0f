"""Batch size limits from free memory; the engine halves a batch that still does not fit.

Rounding depends on the batch, so a run records its limits and a resumed run reuses them. They are powers of
two, so that most new runs have equal limits, too.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from evalsuite.foundation import ConfigError, DataError

MEMORY_FRACTION = 0.6
"""Fraction of the free memory to plan with; the rest covers what the estimate leaves out."""

PASS_WORK = 1.5e13
"""Tokens × parameters of a pass that keeps a GPU busy for about as long as the host needs to launch it.

An H200 and models of 135M parameters: 22 to 89 ms of launches a pass, 1.1 to 2 µs a token on the device. The
longest launches, of Gated DeltaNet's chunks, take as long as 81,000 tokens."""

MEMORY_LIMIT_ENV = "EVALSUITE_GPU_GIB"
"""Environment variable: maximum GiB that this process takes of a shared GPU."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Upper limits of what the engine holds at once.

    Args:
        max_tokens: padded tokens in one forward pass.
        min_tokens: padded tokens below which a pass is not split because of padding.
        max_logits: logits (rows × vocabulary) at once.
        cache_bytes: size of the static cache of a generation.
        max_num_seqs: sequences that decode together.
    """

    max_tokens: int
    min_tokens: int
    max_logits: int
    cache_bytes: int
    max_num_seqs: int

    @staticmethod
    def from_dict(values: Mapping[str, int], source: str) -> "BatchLimits":
        """Inverse of `asdict`.

        Args:
            values: as a run has recorded them.
            source: where, for the error.

        Raises:
            DataError: a limit is missing, unknown, or not a positive integer.
        """
        names = {field.name for field in fields(BatchLimits)}
        if not isinstance(values, Mapping) or set(values) != names:
            raise DataError(f"{source} = {values!r}: expected {', '.join(sorted(names))}; delete it")
        for name, value in values.items():
            if type(value) is not int or value < 1:
                raise DataError(f"{source}.{name} = {value!r}: must be a positive integer")
        return BatchLimits(**values)


def compute_batch_limits(
    device: torch.device,
    parameters: int,
    bytes_per_token: int,
    batch_tokens: int | None,
    *,
    unpads: bool = False,
) -> BatchLimits:
    """Choose limits for a model on its device.

    On a GPU passes are large, bounded by memory, and split because of padding only where both parts keep
    the GPU busy for longer than their launches take. On a CPU they are small enough for the caches, since
    nothing is gained above a few thousand tokens.

    Args:
        device: where the model runs.
        parameters: number of its parameters.
        bytes_per_token: of one token while it is read, its cache included.
        batch_tokens: overrides `max_tokens`.
        unpads: whether padding costs nothing but attention.

    Raises:
        ConfigError: the environment variable `MEMORY_LIMIT_ENV` is not a positive number.
    """
    num_seqs = max_num_seqs(device, parameters)
    if device.type == "cuda":
        free = MEMORY_FRACTION * free_gpu_memory(device)
        tokens = batch_tokens or _power_of_two(min(131072, max(2048, free / 2 / bytes_per_token)))
        unsplit = min(tokens, pass_tokens(device.type, parameters))
        return BatchLimits(tokens, unsplit, 1 << 28, _power_of_two(free / 2), num_seqs)
    tokens = batch_tokens or 4096
    return BatchLimits(tokens, tokens // 2 if unpads else 512, 1 << 23, 2 << 30, num_seqs)


def pass_tokens(device_type: str, parameters: int) -> int:
    """Tokens that one more pass costs: on a GPU, those that it reads while the host launches the pass."""
    return max(1, int(PASS_WORK / parameters)) if device_type == "cuda" else 1


def min_tokens_saved(device_type: str, parameters: int) -> int:
    """Tokens that a prefix read once must save: its requests take two passes, and others share theirs."""
    return 2 * pass_tokens(device_type, parameters)


def _power_of_two(value: float) -> int:
    """Round down to a power of two, at least 1."""
    return 1 << max(0, int(value).bit_length() - 1)


def max_num_seqs(device: torch.device, parameters: int) -> int:
    """Number of sequences that decode together where memory allows."""
    if device.type == "cuda":
        return 512
    # A step over this many sequences takes about as long as reading the weights once, or as Python's
    # overhead.
    return int(min(256, max(32, 4e9 / parameters)))


def free_gpu_memory(device: torch.device) -> float:
    """Free bytes of a GPU, capped by `MEMORY_LIMIT_ENV`.

    With the variable set, the process's share of the GPU's memory is also limited to it.
    """
    free, total = torch.cuda.mem_get_info(device)
    value = os.environ.get(MEMORY_LIMIT_ENV)
    if not value:
        return free
    try:
        limit = float(value) * 2**30
    except ValueError:
        limit = 0.0
    if limit <= 0:
        raise ConfigError(f"{MEMORY_LIMIT_ENV}={value!r}: must be a number of GiB above 0")
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    return min(free, limit)

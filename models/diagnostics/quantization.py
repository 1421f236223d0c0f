"""Weight-only rounding to a few bits: a yardstick for the distance between two models.

Symmetric round-to-nearest: every block of `BLOCK` consecutive weights along the input dimension of a linear
layer shares one scale and has no zero point. It is the plainest scheme there is (no calibration data, no
outlier handling), so that "as far from its teacher as 3-bit rounding" means the same for every teacher.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.quantization import round_symmetric

BITS = (8, 6, 5, 4, 3, 2)
"""The marks of the yardstick."""
BLOCK = 64
"""Weights that share one scale."""


def largest_level(bits: int) -> int:
    """Return the largest integer level: 127 for 8 bits, 1 for 2 bits (the levels −1, 0, 1).

    The level −2^(bits−1) is left unused, so that the levels are symmetric about zero.

    Raises:
        ConfigError: fewer than 2 bits, which leave no level but zero, or more than 16.
    """
    if not 2 <= bits <= 16:
        raise ConfigError(f"bits = {bits}: symmetric rounding needs 2 to 16 bits")
    return int(2 ** (bits - 1) - 1)


def round_to_nearest(weight: Tensor, bits: int, block: int = BLOCK) -> Tensor:
    """Round a weight matrix to `bits` bits per weight, and return it dequantized.

    The scale of a block is max|w| / `largest_level(bits)`, held in float32; the error of each weight is at
    most half of it. A block of zeros stays zero. Ties go to the even level.

    Args:
        weight: [outputs, inputs], floating point.
        bits: bits per weight, scales not counted (a 16-bit scale adds 16 / `block` bits).
        block: inputs that share one scale; the last block of a row may be shorter.

    Returns:
        A new tensor [outputs, inputs] in the dtype of `weight`; in float32 it holds the levels exactly.

    Raises:
        ConfigError: `bits` outside 2 to 16, or `block` below 1.
    """
    level = largest_level(bits)
    if block < 1:
        raise ConfigError(f"block = {block}: must be at least 1")
    outputs, inputs = weight.shape
    padded = nn.functional.pad(weight.float(), (0, -inputs % block)).view(outputs, -1, block)
    rounded = round_symmetric(padded, level, dim=-1)
    return rounded.view(outputs, -1)[:, :inputs].to(weight.dtype)


@torch.no_grad()
def quantized(model: Any, bits: int, block: int = BLOCK) -> Any:
    """Copy a causal language model with every linear layer and the head rounded.

    Embeddings, norms, biases and convolutions stay as they are. A head that is tied to the input embedding is
    untied in the copy: its own weight is rounded, the embedding is not.

    Args:
        model: a transformers causal LM; it is not changed.
        bits, block: as in `round_to_nearest`.

    Returns:
        A model of the same class on the same device and in the same dtype.

    Raises:
        ConfigError: as `round_to_nearest`.
    """
    largest_level(bits)
    rounded = copy.deepcopy(model)
    head, embedding = rounded.get_output_embeddings(), rounded.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        rounded.config.tie_word_embeddings = False
    for module in rounded.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(round_to_nearest(module.weight, bits, block))
    return rounded

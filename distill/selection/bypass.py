"""Bypassing a layer: an identity residual connection across the block's mixing sublayer (Table 3)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def bypassed(model: Any, layer: int) -> Iterator[None]:
    """While it lasts, the mixer of `layer` adds nothing to the residual stream.

    The mixer still runs, so that caches are filled as ever, and its output is set to zero.
    """

    def silence(module: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.zeros_like(output[0]), *output[1:])

    hook = model.model.layers[layer].self_attn.register_forward_hook(silence)
    try:
        yield
    finally:
        hook.remove()

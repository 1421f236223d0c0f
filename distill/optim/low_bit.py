"""AdamW with states of 8 bits, quantized by blocks of 256 values (arXiv 2110.02861; torchao).

torchao quantizes the flattened parameter, so that a block can span rows and a shard of rows can cut it. Here
blocks lie within rows: a state then has the same blocks, and the same values, on any number of GPUs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchao.optim import AdamW8bit
from torchao.optim.subclass_8bit import OptimState8bit

BLOCK = 256
"""Values that share a scale."""
CODES, SCALE = ".codes", ".scale"
"""Suffixes of the two tensors of a quantized state."""
SIGNED = {"exp_avg": True, "exp_avg_sq": False}


class RowwiseAdamW8bit(AdamW8bit):
    """torchao's AdamW8bit, which leaves parameters whose rows are not made of whole blocks in 32 bits."""

    def _new_buffer(self, p: Tensor, signed: bool) -> Tensor:
        # A name of torchao's, which it calls for the first step of each parameter.
        if is_quantized(p):
            return quantized_zeros(p, signed)
        return torch.zeros_like(p)

    def state_tensors(self, parameter: Tensor) -> dict[str, Tensor]:
        """Quantized states as codes and scales."""
        return plain_tensors(self.state[parameter])

    def load_state_tensors(self, parameter: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state_tensors`."""
        self.state[parameter] = quantized_state(tensors) | {"step": tensors["step"].cpu()}


def is_quantized(parameter: Tensor) -> bool:
    """Whether the states of a parameter are stored in 8 bits."""
    return parameter.ndim >= 2 and parameter[0].numel() % BLOCK == 0 and parameter.numel() >= 16 * BLOCK


def quantized_zeros(pattern: Tensor, signed: bool) -> Tensor:
    """A state of zeros for a parameter, sharded as it is."""
    local = pattern.to_local() if isinstance(pattern, DTensor) else pattern
    zeros = OptimState8bit.zeros(local.shape, signed, BLOCK, local.device, dtype=torch.float32)
    return _like(pattern, zeros)


def plain_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of one parameter as tensors that can be saved: quantized ones as codes and scales.

    Scales are [rows, blocks], sharded as the codes are.
    """
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        local = value.to_local() if isinstance(value, DTensor) else value
        if not isinstance(local, OptimState8bit):
            found[name] = torch.as_tensor(value)
            continue
        rows = local.codes.shape[0]
        parts = {CODES: local.codes, SCALE: local.scale.view(rows, -1)}
        for suffix, part in parts.items():
            found[name + suffix] = _like(value, part)
    return found


def quantized_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `plain_tensors`."""
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith((CODES, SCALE))}
    for name in [name.removesuffix(CODES) for name in tensors if name.endswith(CODES)]:
        codes, scale = tensors[name + CODES], tensors[name + SCALE]
        local_codes, local_scale = (x.to_local() if isinstance(x, DTensor) else x for x in (codes, scale))
        qmap = OptimState8bit.zeros((BLOCK,), SIGNED[name], BLOCK, local_codes.device).qmap
        local = OptimState8bit(local_codes, local_scale.reshape(-1), qmap, SIGNED[name], torch.float32)
        found[name] = _like(codes, local)
    return found


def _like(pattern: Tensor, local: Tensor) -> Tensor:
    """`local` as it is or, if the pattern is sharded by rows, as this process's rows of a sharded tensor."""
    if not isinstance(pattern, DTensor):
        return local
    shape = torch.Size((pattern.shape[0], *local.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        local, pattern.device_mesh, pattern.placements, run_check=False, shape=shape, stride=stride
    )

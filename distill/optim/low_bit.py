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
        if p.ndim < 2 or p[0].numel() % BLOCK or p.numel() < 16 * BLOCK:
            return torch.zeros_like(p)
        local = _local(p)
        zeros = OptimState8bit.zeros(local.shape, signed, BLOCK, local.device, dtype=torch.float32)
        return _like(p, zeros)

    def state_tensors(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter as tensors that can be saved: quantized ones as codes and scales.

        Scales are [rows, blocks], sharded as the codes are.
        """
        found: dict[str, Tensor] = {}
        for name, value in self.state[parameter].items():
            local = _local(value)
            if isinstance(local, OptimState8bit):
                found[name + CODES] = _like(value, local.codes)
                found[name + SCALE] = _like(value, local.scale.view(local.codes.shape[0], -1))
            else:
                found[name] = torch.as_tensor(value)
        return found

    def load_state_tensors(self, parameter: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state_tensors`."""
        found = {name: tensor for name, tensor in tensors.items() if not name.endswith((CODES, SCALE))}
        for name in [name.removesuffix(CODES) for name in tensors if name.endswith(CODES)]:
            codes, scale = _local(tensors[name + CODES]), _local(tensors[name + SCALE])
            qmap = OptimState8bit.zeros((BLOCK,), SIGNED[name], BLOCK, codes.device).qmap
            local = OptimState8bit(codes, scale.reshape(-1), qmap, SIGNED[name], torch.float32)
            found[name] = _like(tensors[name + CODES], local)
        self.state[parameter] = found | {"step": tensors["step"].cpu()}


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(pattern: Tensor, local: Tensor) -> Tensor:
    """`local` as it is or, if the pattern is sharded by rows, as this process's rows of a sharded tensor."""
    if not isinstance(pattern, DTensor):
        return local
    shape = torch.Size((pattern.shape[0], *local.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        local, pattern.device_mesh, pattern.placements, run_check=False, shape=shape, stride=stride
    )

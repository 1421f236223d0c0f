"""One process per GPU, each with its share of every batch; gradients are summed.

This is plain torch.distributed: `accelerate launch` and `torchrun` both start it, and what accelerate's
own classes would add (wrapping model, optimizer and loader) hides the two sums that a step needs, and the
one flat buffer that makes them cheap. Models that do not fit are cut by FSDP2, see `sharding`.
"""

import os

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from evalsuite.foundation import ConfigError


class Parallel:
    """This process among its peers. Alone, every call is free.

    Several GPUs are started by `accelerate launch` or `torchrun`, which set RANK and WORLD_SIZE.

    Args:
        device: `cpu`, `cuda`, `cuda:1`; default: CUDA if there is one, and this process's own of several.

    Raises:
        ConfigError: the device does not exist.
    """

    def __init__(self, device: str | None = None) -> None:
        self.world, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        try:
            chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        except RuntimeError:
            raise ConfigError(f"unknown device '{device}'; such as cpu, cuda or cuda:1 are known") from None
        if chosen.type == "cuda":
            if not torch.cuda.is_available():
                raise ConfigError(f"device '{chosen}': there is no CUDA device here")
            if self.world > 1:
                chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            elif chosen.index is not None and chosen.index >= torch.cuda.device_count():
                raise ConfigError(f"device '{chosen}': there are {torch.cuda.device_count()} CUDA devices")
            elif chosen.index is None:
                chosen = torch.device("cuda", torch.cuda.current_device())
            torch.cuda.set_device(chosen)
        self.device = chosen
        if self.world > 1 and not distributed.is_initialized():
            distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")

    @property
    def main(self) -> bool:
        """True in the one process that writes files."""
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """What the device is called, for lineage."""
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return kind if self.world == 1 else f"{self.world} × {kind}"

    def sum(self, tensor: Tensor) -> None:
        """Add up a tensor over all processes, in place."""
        if self.world > 1:
            distributed.all_reduce(tensor)

    def any(self, here: bool) -> bool:
        """True in all processes if `here` is true in one."""
        if self.world == 1:
            return here
        flag = torch.tensor(float(here), device=self.device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return bool(flag.item())

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            distributed.barrier()


def whole(tensor: Tensor) -> Tensor:
    """A tensor without its shards, detached; a collective call if it has some."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(value: Tensor, pattern: Tensor) -> Tensor:
    """`value` on the device of `pattern`, and in shards as it is if their shapes agree."""
    value = value.to(pattern.device)
    if isinstance(pattern, DTensor) and value.shape == pattern.shape:
        return distribute_tensor(value, pattern.device_mesh, pattern.placements)
    return value

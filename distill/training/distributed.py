"""Data parallelism: one process per GPU with its share of every batch, and summed gradients.

This is plain torch.distributed, started by `torchrun` or `accelerate launch`. A step needs two all-reduces,
one of them on the flat gradient buffer; accelerate's wrappers would hide both. Models that do not fit on one
GPU are sharded with FSDP2 (see `fsdp`); long sequences can be shared by several processes.

Tensors on GPUs travel over NCCL. Control messages travel over gloo, whose long timeout allows one process to
wait while others work, and which never synchronizes a host with its GPU.
"""

import os
from datetime import timedelta

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from evalsuite.foundation import ConfigError
from evalsuite.models.sequence_parallel import SequenceParallel

CONTROL_TIMEOUT = timedelta(hours=24)
"""Longest time that processes wait for others which generate responses, read data or write files."""


class ProcessGroup:
    """The processes of a run; with a single process, every collective is a no-op.

    Several GPUs are started by `torchrun` or `accelerate launch`, which set RANK and WORLD_SIZE.

    Args:
        device: `cpu`, `cuda` or `cuda:1`; default: CUDA if available, with one GPU per local process.

    Raises:
        ConfigError: the device does not exist.
    """

    def __init__(self, device: str | None = None) -> None:
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        try:
            chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        except RuntimeError:
            raise ConfigError(f"unknown device '{device}'; use cpu, cuda or cuda:1") from None
        if chosen.type == "cuda":
            if not torch.cuda.is_available():
                raise ConfigError(f"device '{chosen}': no CUDA device is available")
            if self.world_size > 1:
                chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            elif chosen.index is not None and chosen.index >= torch.cuda.device_count():
                raise ConfigError(f"device '{chosen}': there are {torch.cuda.device_count()} CUDA devices")
            elif chosen.index is None:
                chosen = torch.device("cuda", torch.cuda.current_device())
            torch.cuda.set_device(chosen)
        self.device = chosen
        self._control: distributed.ProcessGroup | None = None
        if self.world_size > 1:
            if not distributed.is_initialized():
                distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
            self._control = self.new_control_group()

    def new_control_group(self) -> distributed.ProcessGroup | None:
        """A gloo group of all processes, for messages of one thread; a collective call.

        None with a single process.
        """
        if self.world_size == 1:
            return None
        return distributed.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)

    def sequence_parallel(self, size: int) -> SequenceParallel | None:
        """The place of this process in its group of `size` consecutive processes, which share sequences; a
        collective call. None if processes share none."""
        if size == 1:
            return None
        starts = range(0, self.world_size, size)
        groups = [distributed.new_group(list(range(start, start + size))) for start in starts]
        return SequenceParallel(groups[self.rank // size], self.rank % size, size)

    @property
    def local_world_size(self) -> int:
        """Processes of the run on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def is_main(self) -> bool:
        """True in the one process that writes files."""
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """Name of the device, for the lineage."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return name if self.world_size == 1 else f"{self.world_size} × {name}"

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        if self.world_size > 1:
            distributed.all_reduce(tensor)

    def broadcast(self, tensor: Tensor) -> None:
        """Replace a tensor by that of the main process, in place."""
        if self.world_size > 1:
            distributed.broadcast(tensor, 0)

    def barrier(self) -> None:
        """Wait for all processes, up to `CONTROL_TIMEOUT`."""
        if self.world_size > 1:
            distributed.barrier(self._control)

    def delayed_flags(self) -> "DelayedFlags":
        """Flags of the training loop."""
        return DelayedFlags(self._control)


class DelayedFlags:
    """Flags that become true in all processes at the same call, after they became true in any of them.

    The exchange that a call starts is awaited by the next one, and overlaps with the step between them.

    Args:
        group: of gloo; None with a single process, whose flags need no exchange.
    """

    def __init__(self, group: distributed.ProcessGroup | None) -> None:
        self._group = group
        self._pending: tuple[distributed.Work, Tensor] | None = None

    def exchange(self, *flags: bool) -> tuple[bool, ...]:
        """Send this process' flags; return those of all processes at the previous call (False at first)."""
        if self._group is None:
            return flags
        agreed = self.finish() or (False,) * len(flags)
        tensor = torch.tensor(flags, dtype=torch.uint8)
        work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, self._group, async_op=True)
        self._pending = (work, tensor)
        return agreed

    def finish(self) -> tuple[bool, ...]:
        """End the exchange of the last call; return its flags, or nothing if there is none."""
        if self._pending is None:
            return ()
        (work, tensor), self._pending = self._pending, None
        work.wait()
        return tuple(bool(flag) for flag in tensor.tolist())


def lost_process(error: BaseException) -> bool:
    """Whether an exception says that another process of the run has ended."""
    by_gloo = isinstance(error, RuntimeError) and ("gloo" in str(error) or "closed by peer" in str(error))
    return by_gloo or isinstance(error, distributed.DistError)


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded tensor, detached; a collective call for sharded tensors."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

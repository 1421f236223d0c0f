"""The GPUs of this machine that a process may use."""

import os
import re
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable that CUDA reads once, when a process uses it first."""


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as entries of `VISIBLE` (MIGs included)."""
    if (given := os.environ.get(VISIBLE)) is None:
        import torch

        return tuple(str(index) for index in range(torch.cuda.device_count()))
    found = []
    for entry in (each.strip() for each in given.split(",")):
        # CUDA ignores what follows an invalid entry.
        if entry in ("", "-1"):
            break
        found.append(entry)
    return tuple(found)


def share_memory(processes: int) -> None:
    """Let this process plan with its part of the GPU's memory, unless a variable limits it already."""
    import torch

    from evalsuite.models.inference.batch_limits import MEMORY_LIMIT_ENV

    if MEMORY_LIMIT_ENV not in os.environ and torch.cuda.is_available():
        _, total = torch.cuda.mem_get_info()
        os.environ[MEMORY_LIMIT_ENV] = f"{total / 2**30 / processes:.2f}"


def likely_gpus(devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return what `visible_gpus` is likely to return, without the seconds that importing torch takes.

    Args:
        devices: folder of the device files of NVIDIA's driver, one per GPU.
    """
    if VISIBLE in os.environ:
        return visible_gpus()
    count = sum(re.fullmatch(r"nvidia\d+", file.name) is not None for file in devices.iterdir())
    return tuple(map(str, range(count)))

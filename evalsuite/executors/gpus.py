"""The GPUs of this machine that a process may use."""

import os

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

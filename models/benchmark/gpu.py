"""State of a GPU from NVML: clock, energy and other processes; nothing is ever set."""

import importlib
from contextlib import suppress
from typing import Any

import torch

SM_CLOCK = 1
"""NVML_CLOCK_SM."""


class Gpu:
    """A GPU as NVML sees it; every reading is empty on a CPU or without the package nvidia-ml-py."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._nvml: Any = None
        self._handle: Any = None
        if device.type != "cuda":
            return
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            return
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)

    def millijoules(self) -> int | None:
        """Energy since the driver was loaded."""
        found: int | None = self._get("nvmlDeviceGetTotalEnergyConsumption")
        return found

    def begin_point(self) -> None:
        """Forget the peak of memory."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def facts(self) -> dict[str, Any]:
        """Fields of a measurement: peak memory since `begin_point`, the clock, other processes."""
        on_gpu = self.device.type == "cuda"
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            "sm_clock_mhz": self._get("nvmlDeviceGetClockInfo", SM_CLOCK),
            "other_processes": self.other_processes(),
        }

    def other_processes(self) -> int | None:
        """Number of other processes that compute on the GPU; None if unknown."""
        found = self._get("nvmlDeviceGetComputeRunningProcesses")
        # In a container the driver knows this process by another number; it is one of them all the same.
        return None if found is None else max(0, len(found) - 1)

    def _get(self, name: str, *arguments: Any) -> Any:
        """What a function of NVML returns; None where it does not give a value."""
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def device_name(device: torch.device) -> str:
    """Name of the GPU, or the number of CPU threads."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"

"""State of a GPU from NVML: clock, energy and other processes; nothing is ever set."""

import importlib
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading; None where NVML does not give a value."""

    sm_clock_mhz: int | None = None
    millijoules: int | None = None
    """Energy since the driver was loaded."""


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
        try:
            self._nvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError:
            self._handle = None

    def read(self) -> GpuState:
        """Read the GPU's state."""
        if self._handle is None:
            return GpuState()
        nvml = self._nvml
        return GpuState(
            sm_clock_mhz=self._get(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            millijoules=self._get(nvml.nvmlDeviceGetTotalEnergyConsumption),
        )

    def other_processes(self) -> int | None:
        """Number of other processes that compute on the GPU; None if unknown."""
        if self._handle is None:
            return None
        found = self._get(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        # In a container the driver knows this process by another number; it is one of them all the same.
        return None if found is None else max(0, len(found) - 1)

    def _get(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def device_name(device: torch.device) -> str:
    """Name of the GPU, or the number of CPU threads."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"


def free_memory(device: torch.device) -> None:
    """Return cached blocks to the GPU, so that the next point starts with all of its memory."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()

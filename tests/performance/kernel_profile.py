"""Profile of a function: is it host- or device-bound, and which kernels take the time?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """Time of one run, by kernel.

    Args:
        seconds: wall-clock time, without the profiler.
        device_seconds: sum of the kernels' times; on a CPU, of torch's operators.
        kernels: number of kernels (operators).
        largest: the slowest kernels, as (name, share of `device_seconds`).
    """

    seconds: float
    device_seconds: float
    kernels: int
    largest: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        busy = self.device_seconds / self.seconds
        bound = "the device" if busy > 0.8 else "the host (kernel launches)"
        largest = ", ".join(f"{name} {share:.0%}" for name, share in self.largest)
        return (
            f"{self.seconds:.2f} s; device busy {busy:.0%} "
            f"with {self.kernels:,} kernels of {1e6 * self.device_seconds / max(1, self.kernels):.1f} µs; "
            f"bound by {bound}. Slowest: {largest}"
        )


def profile_kernels(work: Callable[[], object], *, top: int = 6) -> KernelProfile:
    """Run `work` twice, once timed and once profiled (kernels only, no host events)."""
    on_gpu = torch.cuda.is_available()
    start = time.perf_counter()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    found = []
    for event in recorded.key_averages():
        if not on_gpu:
            found.append((event.key, event.self_cpu_time_total, event.count))
        elif event.device_type == DeviceType.CUDA:
            found.append((event.key, event.self_device_time_total, event.count))
    found.sort(key=lambda each: -each[1])
    total = sum(each[1] for each in found) or 1.0
    largest = tuple((_short_name(name), spent / total) for name, spent, _ in found[:top])
    return KernelProfile(seconds, total / 1e6, sum(each[2] for each in found), largest)


def _short_name(name: str) -> str:
    """Kernel name without return type, template arguments and namespaces."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").split("<")[0].split("(")[0]
    return name.split("::")[-1][:40]

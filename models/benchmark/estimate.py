"""Estimate of a sweep's time and memory, from the configs and two short probes of the device."""

from dataclasses import dataclass

import torch

from evalsuite.models.benchmark.points import Point
from evalsuite.models.benchmark.subject import MAX_NEW_TOKENS, Subject
from evalsuite.models.benchmark.timing import time_each

EFFICIENCY = 0.35
"""Typical share of the probed rates that a whole model reaches."""
STEPS = 24
"""Decode steps of a point: warm-up, capture and timing."""
POINT_SECONDS = 0.5
"""Time of a point besides its work: compilation, capture, memory."""
ACTIVATIONS = 12
"""Hidden widths of activations per prompt token that are alive at the peak of a prefill, about."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Probed rates of a device."""

    flops: float
    """FLOPs per second of a matrix product."""
    bytes: float
    """Bytes per second of a copy, read and written."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected cost of one point."""

    point: Point
    seconds: float
    memory_bytes: int


def probe(device: torch.device, dtype: torch.dtype) -> Rates:
    """Time a matrix product and a copy, large enough to fill a GPU."""
    size, length = (8192, 1 << 29) if device.type == "cuda" else (512, 1 << 22)
    square = torch.randn(size, size, device=device, dtype=dtype)
    product = time_each(lambda: square @ square, 4, device)
    source = torch.randint(-9, 9, (length,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    copy = time_each(lambda: target.copy_(source), 4, device)
    return Rates(2 * size**3 / product.low * 1000, 2 * length / copy.low * 1000)


def estimate(subject: Subject, point: Point, rates: Rates) -> Estimate:
    """Estimate a point from FLOPs and bytes; an unknown architecture counts two FLOPs per parameter."""
    flops = subject.prefill_flops(point.context) or 2.0 * subject.cost.num_params
    cache = (subject.cache_bytes(point.context + MAX_NEW_TOKENS) or 0) * point.batch
    step = (subject.weight_bytes() + 2 * cache) / (EFFICIENCY * rates.bytes)
    seconds, memory = STEPS * step + POINT_SECONDS, subject.weight_bytes() + cache
    if point.kind == "request":
        tokens = point.context * point.batch
        seconds += (point.repeats + 1) * tokens * flops / (EFFICIENCY * rates.flops)
        width = int(subject.config.get_text_config().hidden_size)
        # The cache exists twice while it is copied into the decode batch.
        memory += cache + ACTIVATIONS * tokens * width * subject.dtype.itemsize
    return Estimate(point, seconds, memory)

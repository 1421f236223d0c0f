"""The numbers that `bench --engine vllm` reports; the engine here is the in-process one in vLLM's place."""

from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models import describe_checkpoint, load_checkpoint
from evalsuite.models.benchmark.points import Point
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.vllm.benchmark import VllmBenchmark


class Served(TorchEngine):
    """What vLLM's engine states of itself."""

    dtype = "float32"
    versions = {"device": "cpu", "vllm": "0.32.0"}  # type: ignore[assignment]  # noqa: RUF012


def test_requests_have_the_given_context_and_batch() -> None:
    info = describe_checkpoint("pocket")
    engine: Any = Served(load_checkpoint("pocket", dtype="float32"), max_length=100)
    benchmark = VllmBenchmark(info, engine)
    found = benchmark.measure(Point(kind="request", context=20, batch=3, repeats=2))
    assert (found.weights_id, found.context, found.batch) == (info.weights_id, 20, 3)
    assert (found.engine, found.versions, found.device) == ("vllm", "vLLM 0.32.0", "CPU")
    assert found.peak_bytes is None
    # Four layers of two key heads of 32, keys and values, in float32.
    assert found.expected_cache_bytes == 20 * 4 * 2 * 2 * 32 * 4
    assert found.ttft_ms is not None
    assert found.ttft_ms.repeats == 2
    with pytest.raises(
        ConfigError, match=r"80 prompt tokens and 33 generated ones exceed the engine.s maximum length of 100"
    ):
        benchmark.measure(Point(kind="request", context=80))
    with pytest.raises(ConfigError, match="takes no synthetic caches"):
        benchmark.measure(Point(kind="decode", context=20))

"""The numbers that `bench --engine vllm` reports; the engine here is the in-process one in vLLM's place."""

from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models import describe_checkpoint, load_checkpoint, throughput
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.vllm_plugin.benchmark import measure_served


def test_throughput_has_the_given_context_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "SECONDS", 0.0)
    info = describe_checkpoint("pocket")
    engine: Any = TorchEngine(load_checkpoint("pocket", dtype="float32"), max_length=100)
    engine.dtype, engine.versions = "float32", {"device": "cpu", "vllm": "0.32.0"}
    cost = measure_served(info, 20, 3, engine)
    assert (cost.weights_id, cost.context, cost.batch) == (info.weights_id, 20, 3)
    assert cost.device == "CPU, vLLM 0.32.0"
    assert cost.peak_bytes is None
    # Four layers of two key heads of 32, keys and values, in float32.
    assert cost.state_bytes == 20 * 4 * 2 * 2 * 32 * 4
    assert cost.prefill_tokens_per_second > 0
    assert cost.decode_tokens_per_second > 0
    with pytest.raises(
        ConfigError, match=r"80 prompt tokens and 32 generated ones exceed the engine.s maximum length of 100"
    ):
        measure_served(info, 80, 1, engine)
    with pytest.raises(ConfigError, match="context 0, batch 1"):
        measure_served(info, 0, 1, engine)

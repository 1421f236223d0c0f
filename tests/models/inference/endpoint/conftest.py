"""A random checkpoint, the server that holds it, and engines that call it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evalsuite.models.engines import load_engines
from evalsuite.models.inference.endpoint.engine import EndpointEngine
from evalsuite.models.inference.registry import EngineSettings
from tests.models.inference.conftest import SHAPE
from tests.models.inference.endpoint.server import Server, serving

Open = Callable[..., EndpointEngine]


@pytest.fixture(scope="module")
def checkpoint(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that was written to disk with its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("endpoint") / "tiny"
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def host(checkpoint: Path) -> Iterator[Server]:
    with serving(checkpoint) as server:
        yield server


@pytest.fixture
def server(host: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server without faults, and without memories."""
    monkeypatch.setattr("evalsuite.models.inference.endpoint.client._pause", lambda attempt: 0.0)
    host.fault, host.names_ids = lambda number, body: "", True
    host.models = [{"id": "tiny", "max_model_len": 256}]
    host.keys, host.bodies, host.answered, host.most_in_flight = [], [], [], 0
    return host


@pytest.fixture
def opened(server: Server, checkpoint: Path) -> Iterator[Open]:
    engines = []

    def make(**arguments: Any) -> EndpointEngine:
        settings = EngineSettings(
            device="cpu", dtype="float32", arguments={"url": server.url, "timeout": 20} | arguments
        )
        engines.append(load_engines().get_or_raise("endpoint").open(str(checkpoint), settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()

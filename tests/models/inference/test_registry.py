"""Engines by name, and engines of other packages."""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from evalsuite.foundation import ConfigError, registry
from evalsuite.foundation.registry import API_VERSION
from evalsuite.models.benchmark.points import Point
from evalsuite.models.engines import ENGINES, engine_type
from evalsuite.models.inference import Engine, EngineSettings, EngineType, ScoreRequest
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse, ScoreResponse
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.vllm.engine import VllmEngine
from tests.parity.tiny_families import FAMILIES, make_tokenizer

SETTINGS = EngineSettings(device="cpu", dtype="float32", label="mine")


class Constant(EngineType):
    """An engine of another package, to which everything is equally likely."""

    display_name = "constant"
    max_length = 64
    fingerprint = "0" * 16

    def __init__(self, path: str, settings: EngineSettings) -> None:
        self.weights_id = path
        self.versions = {"device": settings.device, "dtype": settings.dtype}

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> Engine:
        return cls(path, settings)

    @property
    def label(self) -> str:
        return self.weights_id

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        for number, request in enumerate(requests):
            counts = tuple(map(len, request.continuations))
            yield number, ScoreResponse((-1.0,) * len(counts), (False,) * len(counts), counts)

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        for number, _ in enumerate(requests):
            yield number, GenerateResponse((1,), "a", "stop")

    def close(self) -> None:
        """Nothing to release."""


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Offer an object as the engine `constant` of another package."""

    def offer(item: Any) -> None:
        module = ModuleType("engine_plugin")
        module.item, module.EVALSUITE_API = item, API_VERSION  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "engine_plugin", module)
        points = [EntryPoint("constant", "engine_plugin:item", ENGINES.group or "")]
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
        monkeypatch.setattr(ENGINES, "_plugins", None)
        monkeypatch.setattr(ENGINES, "_loaded", {})

    return offer


def test_our_engines_by_name() -> None:
    assert ENGINES["torch"] is TorchEngine
    assert ENGINES["vllm"] is VllmEngine
    assert [ENGINES[name].name for name in ("torch", "vllm")] == ["torch", "vllm"]


def test_an_engine_of_another_package(offer: Callable[[Any], None]) -> None:
    offer(Constant)
    kind = engine_type("constant", {})
    engine = kind.open("weights", SETTINGS)
    assert (engine.name, engine.weights_id) == ("constant", "weights")
    [(index, response)] = engine.score([ScoreRequest((1, 2), ((3,), (4, 5)))])
    assert (index, response.logprobs) == (0, (-1.0, -1.0))
    assert kind.token_times(None, None, SETTINGS, parameters=1, prompt_tokens=1, num_responses=1) is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="engine constant has no benchmark"):
        kind.benchmark(engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (dict, "it must be a class derived from evalsuite.models.inference.EngineType"),
        (type("Nameless", (Constant,), {"display_name": None}), "Nameless.display_name must be a string"),
        (type("Empty", (EngineType,), {"display_name": "e"}), "Empty lacks score, generate, close, open"),
    ],
)
def test_an_object_that_is_no_engine_is_refused(
    offer: Callable[[Any], None], item: Any, message: str
) -> None:
    offer(item)
    with pytest.raises(ConfigError, match=f"'constant' of engine_plugin:item is no engine: {message}"):
        engine_type("constant", {})


def test_unknown_engines_and_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown engine 'torhc'.*'torch'"):
        engine_type("torhc", {})
    with pytest.raises(ConfigError, match="engine torch takes no arguments, such as enforce_eager"):
        engine_type("torch", {"enforce_eager": True})
    assert engine_type("vllm", {"enforce_eager": True}) is VllmEngine


@torch.no_grad()
def test_the_torch_engine_opens_a_checkpoint(make_teacher: Callable[..., PreTrainedModel]) -> None:
    engine = TorchEngine.open("pocket", SETTINGS)
    assert engine.checkpoint.label == "mine"
    assert engine.runner.dtype == torch.float32
    measured = engine.benchmark().measure(Point(kind="request", context=8))
    assert (measured.weights_id, measured.context) == (engine.weights_id, 8)
    times = TorchEngine.token_times(
        engine.checkpoint.model.config,
        engine.checkpoint.tokenizer,
        SETTINGS,
        parameters=10**6,
        prompt_tokens=8,
        num_responses=0,
    )
    assert times.prefill > 0


@torch.no_grad()
def test_what_engine_torch_does_not_run_is_timed_in_engine_transformers() -> None:
    family = FAMILIES["qwen3_5"]
    config = AutoConfig.for_model(family.model_type, **family.settings)
    times = TorchEngine.token_times(
        config, make_tokenizer(), SETTINGS, parameters=10**6, prompt_tokens=8, num_responses=0
    )
    assert times.prefill > 0

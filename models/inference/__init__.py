"""Inference engines: two verbs, `score` and `generate`, from requests of token ids to responses."""

from typing import TYPE_CHECKING, Any

from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.engines import engine_type, load_engines
from evalsuite.models.inference.registry import EngineSettings, EngineType
from evalsuite.models.inference.requests import (
    GenerateRequest,
    GenerateResponse,
    Request,
    Response,
    SamplingParams,
    ScoreRequest,
    ScoreResponse,
)
from evalsuite.models.inference.response_cache import ResponseCache, run_requests

if TYPE_CHECKING:
    from evalsuite.models.inference.registry import ENGINES

__all__ = [
    "ENGINES",
    "Engine",
    "EngineSettings",
    "EngineType",
    "GenerateRequest",
    "GenerateResponse",
    "Request",
    "Response",
    "ResponseCache",
    "SamplingParams",
    "ScoreRequest",
    "ScoreResponse",
    "engine_type",
    "run_requests",
]


def __getattr__(name: str) -> Any:
    if name == "ENGINES":
        return load_engines()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

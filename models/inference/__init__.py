"""Inference engines: two verbs, `score` and `generate`, from requests of token ids to responses."""

from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.registry import ENGINES, EngineSettings, EngineType, engine_type
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

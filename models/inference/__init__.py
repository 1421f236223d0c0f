"""Inference engines: two verbs, `score` and `generate`, from requests of token ids to responses."""

from evalsuite.models.inference.base import Engine
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

__all__ = [
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
    "run_requests",
]

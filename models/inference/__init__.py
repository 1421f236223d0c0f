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
from evalsuite.models.inference.torch import engine as torch_engine  # noqa: F401 -- registers itself
from evalsuite.models.inference.transformers import engine as transformers_engine  # noqa: F401 -- the same
from evalsuite.models.inference.vllm import engine as vllm_engine  # noqa: F401 -- registers itself

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

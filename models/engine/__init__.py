"""The engine: every answer in evalsuite comes out of `score` and `generate`."""

from evalsuite.models.engine.base import Engine
from evalsuite.models.engine.requests import (
    Answer,
    GenerateAnswer,
    GenerateRequest,
    Request,
    Sampling,
    ScoreAnswer,
    ScoreRequest,
)
from evalsuite.models.engine.store import AnswerStore, answer_all

__all__ = [
    "Answer",
    "AnswerStore",
    "Engine",
    "GenerateAnswer",
    "GenerateRequest",
    "Request",
    "Sampling",
    "ScoreAnswer",
    "ScoreRequest",
    "answer_all",
]

"""Runs of the tests."""

from typing import Any

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.run import Summary


def evaluate_quietly(**settings: Any) -> Summary:
    """Evaluate without progress bars; `settings` are those of a `RunConfig`."""
    return evaluate(RunConfig(quiet=True, **settings))

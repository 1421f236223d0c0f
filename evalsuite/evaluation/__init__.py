"""Evaluation in three phases with files between them: build requests, infer responses, score them.

Importing this package is cheap and needs neither a harness nor pydantic, so that a GPU host can run inference
without them. Reports import `evalsuite.evaluation.prompts` for document texts, without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.evaluation.estimate import estimate_run
    from evalsuite.evaluation.run import evaluate

__all__ = ["estimate_run", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = {"estimate_run": "estimate", "evaluate": "run"}[name]
    return getattr(import_module(f"{__name__}.{home}"), name)

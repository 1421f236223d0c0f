"""Evaluation in three phases with files between them: build requests, infer responses, score them.

Importing this package is cheap and needs neither a harness nor pydantic, so that a GPU host can run inference
without them. Reports import `evalsuite.evaluation.prompts` for document texts, without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.evaluation.run import PHASES, evaluate

__all__ = ["PHASES", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evalsuite.evaluation import run

    return getattr(run, name)

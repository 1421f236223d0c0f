"""The evaluator: render, answer, judge, with files between them.

Importing it is cheap and needs neither harness nor pydantic: a GPU host that only answers has neither. A
report that joins question texts imports `evalsuite.evaluator.questions`, and no torch with it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.evaluator.run import PHASES, evaluate

__all__ = ["PHASES", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evalsuite.evaluator import run

    return getattr(run, name)

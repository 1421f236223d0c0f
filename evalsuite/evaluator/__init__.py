"""The evaluator: render, answer, judge, with files between them.

Importing it is cheap and needs neither harness nor pydantic: a GPU host that only answers has neither.
"""

from evalsuite.evaluator.run import PHASES, evaluate

__all__ = ["PHASES", "evaluate"]

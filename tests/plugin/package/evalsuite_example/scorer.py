"""A scorer: the last word of the response is the answer."""

from collections.abc import Mapping
from typing import Any

from evalsuite.protocols.scorers import ScorerOutput

EVALSUITE_API = 1


def last_word(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the last word of the response is the answer."""
    words = response.split()
    found, target = (words[-1] if words else ""), str(row["answer"])
    return ScorerOutput({"accuracy": float(found == target)}, found, target)

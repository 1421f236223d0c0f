"""Which of two responses to one request counts: nothing decides between two that disagree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalsuite.models.inference.requests import GenerateResponse, Response, ScoreResponse


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Deviations of a log-probability, in nats: explained by rounding, and not explained by anything."""

    rounding: float
    broken: float

    def status(self, difference: float) -> Literal["ok", "warning", "failed"]:
        """Of a deviation: ok where rounding explains it, failed where nothing does."""
        if difference > self.broken:
            return "failed"
        return "warning" if difference > self.rounding else "ok"


TOLERANCES = {"float32": Tolerance(1e-3, 0.1), "float64": Tolerance(1e-6, 1e-3)}
"""By dtype."""
HALF_TOLERANCE = Tolerance(0.5, 3.0)
"""For 16-bit dtypes: with 8 (11) bits per activation, half a nat on one token is rounding."""


def rounding(versions: Mapping[str, object]) -> float:
    """The rounding of log-probabilities by an engine with these versions, in nats."""
    return TOLERANCES.get(str(versions.get("dtype")), HALF_TOLERANCE).rounding


def settle(before: Response, after: Response, tolerance: float) -> Response | None:
    """Return the response that counts of two to one request; None if they disagree.

    A sound response counts before an error, of two errors the later one, and a generation that the model's
    positions cut short gives way to a longer one. Log-probabilities that differ by no more than rounding
    agree: the smaller ones count, so that the order in which responses arrive changes nothing.

    Args:
        before, after: in the order in which they were stored.
        tolerance: see `rounding`.
    """
    if before.error or after.error:
        return before if after.error and not before.error else after
    if isinstance(before, ScoreResponse) and isinstance(after, ScoreResponse):
        pairs = zip(before.logprobs, after.logprobs, strict=False)
        same = (before.greedy, before.lengths) == (after.greedy, after.lengths)
        near = same and all(abs(one - other) <= tolerance for one, other in pairs)
        if not near:
            return None
        # A shard has them in float32, in which they were summed; that difference is none.
        first, second = (np.asarray(each.logprobs, dtype=np.float32).tolist() for each in (before, after))
        return after if second < first else before
    assert isinstance(before, GenerateResponse)
    assert isinstance(after, GenerateResponse)
    if before == after:
        return before
    short, long = sorted((before, after), key=lambda each: len(each.tokens))
    return long if short.finish_reason == "length" and len(short.tokens) < len(long.tokens) else None

"""What the tests of `doctor` share: documents of random tokens for tiny models of the parity tests."""

import random

import pytest

from evalsuite.models.inference.requests import ScoreRequest
from tests.parity.tiny_families import VOCABULARY


@pytest.fixture(scope="session")
def tiny_documents() -> list[ScoreRequest]:
    """Documents of two continuations, of 4 to 20 tokens."""
    draw = random.Random(0)

    def tokens(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, VOCABULARY) for _ in range(draw.randint(least, most)))

    return [ScoreRequest(tokens(3, 14), (tokens(1, 6), tokens(1, 6))) for _ in range(3)]


@pytest.fixture(autouse=True)
def short_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the tokens that `doctor` generates, for short tests."""
    for module in ("served", "consistency_checks"):
        monkeypatch.setattr(f"evalsuite.models.diagnostics.{module}.NUM_GENERATED", 8)

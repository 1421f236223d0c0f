"""A benchmark in Python: its documents are what a function returns."""

from random import Random
from typing import Any

from evalsuite.tasks.generator import RowRequest, benchmark

EVALSUITE_API = 1
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Peru": "Lima"}


@benchmark(
    "example_capitals",
    count=len(CAPITALS),
    title="Capitals",
    category="knowledge",
    chance=0.2,
    license="CC0",
    citation="evalsuite-example",
    loglikelihood={"task": "evalsuite/choices.yaml", "metric": "acc"},
)
def capitals(request: RowRequest) -> list[dict[str, Any]]:
    """The first documents in the order of the seed."""
    order = Random(request.seed).sample(sorted(CAPITALS), request.count)
    choices = [f" {city}" for city in CAPITALS.values()]
    return [
        {
            "prompt": f"The capital of {country} is",
            "choices": choices,
            "gold": choices.index(f" {CAPITALS[country]}"),
        }
        for country in order
    ]

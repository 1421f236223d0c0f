"""A document generator: sequences of numbers to go on with."""

from random import Random
from typing import Any

from evalsuite.tasks.generator import RowRequest

EVALSUITE_API = 1


def counting(request: RowRequest) -> list[dict[str, Any]]:
    """Sequences with a constant step, of which the next number is wanted."""
    rows = []
    for index in range(request.count):
        rng = Random(f"{request.task} {request.seed} {index}")
        first, step = rng.randint(1, 9), 1 if request.task == "ones" else rng.randint(2, 9)
        numbers = [str(first + step * k) for k in range(5)]
        rows.append({"prompt": ", ".join(numbers[:4]) + ",", "answers": [numbers[4]]})
    return rows

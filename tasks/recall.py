"""Recall numbers: means over the benchmarks that name them, defined in `recall.yaml`."""

from functools import cache
from pathlib import Path

from evalsuite.foundation.strict import parse_dataclass
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.taxonomy import RecallNumber
from evalsuite.tasks.benchmark import Benchmark

FILE = Path(__file__).with_name("recall.yaml")


def recall_numbers(benchmark: Benchmark) -> dict[str, RecallNumber]:
    """Return the recall numbers that count a benchmark; a name outside `recall.yaml` is its own title."""
    return {name: _known().get(name, RecallNumber(name)) for name in benchmark.recall}


@cache
def _known() -> dict[str, RecallNumber]:
    return {
        name: parse_dataclass(fields, RecallNumber, str(FILE)) for name, fields in read_yaml(FILE).items()
    }

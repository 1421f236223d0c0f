"""Overlap of training documents with the documents of benchmarks: 13-grams, and questions with answers."""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evalsuite.distill.data.decontamination.ngrams import NgramIndex, OverlapCount
from evalsuite.distill.data.decontamination.question_overlap import QuestionIndex
from evalsuite.distill.data.examples import Example, document_hash
from evalsuite.distill.data.preparation import read_examples
from evalsuite.distill.recipe.data_sources import DataSourceConfig, TableSourceConfig
from evalsuite.foundation import DataError, counted, progress, write_text

BATCH_SIZE = 2048
"""Training documents that are read and matched together."""


@dataclass(frozen=True, slots=True)
class SuiteRows:
    """Benchmark → rows. `texts` are compared by n-grams and by questions, `generated` by questions alone:
    their n-grams are those of their templates, which training questions share."""

    texts: dict[str, list[Any]]
    generated: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class SourceOverlap:
    """Training documents of one source that overlap with benchmarks.

    `counts`: by KINDS and benchmark. `excluded`: documents that overlap with any benchmark in any way.
    """

    counts: NDArray[np.int64]
    documents: int = 0
    excluded: int = 0


KINDS = ("shared_ngram", "same_question", "same_question_and_answer")
"""How a training document overlaps with a benchmark: by 13 words, its question, or that and its answer."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Overlap of a recipe's sources with the benchmarks of a suite, and the documents to exclude."""

    benchmarks: list[str]
    sources: dict[str, SourceOverlap]
    documents: dict[str, OverlapCount]
    excluded: set[int]


def suite_rows(suite: str, data_dir: Path | str | None) -> SuiteRows:
    """The rows of a suite's documents; for generated benchmarks, also the texts they are generated from."""
    from evalsuite.tasks.sources.data import open_source
    from evalsuite.tasks.sources.documents import documents
    from evalsuite.tasks.suite import load_suite, resolve

    data, loaded = open_source(data_dir), load_suite(suite)
    found = SuiteRows({})
    for entry, benchmark in resolve(loaded):
        made = benchmark.generated
        if made is not None and made.inputs:
            found.texts[benchmark.name] = [
                row for each in made.inputs for row in data.rows(each.dataset, each.config, each.split)
            ]
        elif made is None or not benchmark.contexts:
            rows = documents(benchmark, data_dir=data_dir, limit=entry.limit, seed=loaded.seed)
            target = found.texts if made is None else found.generated
            target[benchmark.name] = [document.row for document in rows]
    return found


def measure(
    sources: Mapping[str, DataSourceConfig], tokenizer: Any, rows: SuiteRows, *, as_trained: bool
) -> Overlap:
    """Compare every source with the documents of a suite.

    Args:
        tokenizer: renders conversations.
        as_trained: apply the sources' own exclusion lists.

    Raises:
        DataError: a source cannot be read.
    """
    both = rows.texts | rows.generated
    ngrams, questions = NgramIndex(rows.texts), QuestionIndex(both)
    benchmarks = list(both)
    found = Overlap(benchmarks, {}, {}, set())
    for name, source in sources.items():
        if not as_trained and isinstance(source, TableSourceConfig):
            source = source.model_copy(update={"exclude": None})
        counts = found.sources[name] = SourceOverlap(np.zeros((len(KINDS), len(benchmarks)), dtype=np.int64))
        for examples in progress(example_batches(name, source, tokenizer), what=name):
            shared = ngrams.match([example.text for example in examples])
            by_ngram = np.zeros((len(examples), len(benchmarks)), dtype=bool)
            by_ngram[:, : shared.shape[1]] = shared
            by_question, by_pair = questions.match(map(_prompt_and_completion, examples))
            overlaps = (by_ngram | by_question).any(axis=1)
            found.excluded.update(document_hash(examples[number].text) for number in np.flatnonzero(overlaps))
            counts.counts += np.stack([by_ngram, by_question, by_pair]).sum(axis=1)
            counts.documents += len(examples)
            counts.excluded += int(overlaps.sum())
    found.documents.update(ngrams.counts())
    return found


def check(sources: Mapping[str, DataSourceConfig], tokenizer: Any, rows: SuiteRows) -> None:
    """Refuse sources with text of evaluated documents. Raises DataError that names source, benchmark and way
    out; also raises as `measure` does."""
    found = measure(sources, tokenizer, rows, as_trained=True)
    for name, counts in found.sources.items():
        if counts.excluded:
            worst = int(np.argmax(counts.counts[:2].sum(axis=0)))
            raise DataError(
                f"{counts.excluded:,} of {counted(counts.documents, 'document')} of source '{name}' contain "
                "text of evaluated documents, most of them of benchmark "
                f"'{found.benchmarks[worst]}'; set data.{name}.exclude to the overlap-exclude.txt that "
                "`python -m evalsuite.distill.data.decontamination` writes, or leave the source out"
            )


def example_batches(name: str, source: DataSourceConfig, tokenizer: Any) -> Iterator[list[Example]]:
    """The examples of a source in order, BATCH_SIZE at a time."""
    examples = read_examples(name, source, tokenizer)
    while batch := list(islice(examples, BATCH_SIZE)):
        yield batch


def _prompt_and_completion(example: Example) -> tuple[str, str]:
    """Plain text, which has no prompt, is both."""
    prompt = "".join(text for text, is_completion in example.segments if not is_completion)
    completion = "".join(text for text, is_completion in example.segments if is_completion)
    return prompt or completion, completion


def write(found: Overlap, out: Path) -> None:
    """Write the three tables, which contain no text, and the exclusion list."""
    out.mkdir(parents=True, exist_ok=True)
    header = ["documents", "long_enough", "overlapping", "share"]
    by_benchmark = [[name, *_shares(count)] for name, count in found.documents.items()]
    _write(out / "overlap.csv", ["benchmark", *header], by_benchmark)
    by_source = [
        [name, *_shares(OverlapCount(count.documents, count.documents, count.excluded))]
        for name, count in found.sources.items()
    ]
    _write(out / "overlap-training.csv", ["source", *header], by_source)
    pairs = [
        [name, benchmark, count.documents, *counts]
        for name, count in found.sources.items()
        for benchmark, counts in zip(found.benchmarks, count.counts.T, strict=True)
    ]
    _write(out / "overlap-pairs.csv", ["source", "benchmark", "documents", *KINDS], pairs)
    write_text(out / "overlap-exclude.txt", "".join(f"{number:016x}\n" for number in sorted(found.excluded)))


def _shares(count: OverlapCount) -> list[Any]:
    share = count.overlapping / count.documents if count.documents else 0.0
    return [*astuple(count), f"{share:.4f}"]


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    write_text(path, pd.DataFrame(rows, columns=header).to_csv(index=False, lineterminator="\n"))

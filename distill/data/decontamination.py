"""Decontamination: 13-gram overlap between the training documents of a recipe and the benchmarks of a suite.

    python -m evalsuite.distill.data.decontamination RECIPE SUITE --data DIR --out DIR

writes DIR/overlap.csv (benchmark documents found in the training text, per benchmark),
DIR/overlap-training.csv (training documents that overlap with a benchmark, per source) and
DIR/overlap-exclude.txt, a list for the `exclude` key of a source. Words are runs of letters and digits in
lower case, as in arXiv 2005.14165, Appendix C. Strings of a row are matched separately, so that no n-gram
spans a question and its answer. Training text is streamed; only the benchmark side is held in memory.
"""

import argparse
import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalsuite.distill.data.config import DataSourceConfig
from evalsuite.distill.data.examples import document_hash
from evalsuite.distill.data.preparation import read_examples
from evalsuite.distill.recipe import load_recipe
from evalsuite.foundation import progress, write_text
from evalsuite.models import describe_checkpoint

NGRAM_WORDS = 13
"""Length of an n-gram in words."""
BATCH_SIZE = 2048
"""Training documents that are read and matched together."""
_WORD = re.compile(r"[^\W_]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


@cache
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


def ngram_hashes(text: str, length: int = NGRAM_WORDS) -> Hashes:
    """64-bit hashes of all n-grams of `length` words; empty if the text has fewer words."""
    words = np.fromiter(map(_word_hash, _WORD.findall(text.lower())), dtype=np.uint64)
    count = len(words) - length + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * _FACTOR + words[offset : offset + count]
    return hashes


def strings(value: Any) -> Iterator[str]:
    """All strings inside a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(strings, value.values()))
    elif isinstance(value, Iterable):
        yield from chain.from_iterable(map(strings, value))


@dataclass(frozen=True)
class OverlapCount:
    """Number of documents, of those with at least one n-gram, and of those that overlap."""

    documents: int
    long_enough: int
    overlapping: int


class NgramIndex:
    """N-gram hashes of the documents of several benchmarks.

    Args:
        rows: benchmark → its rows; each row is a document.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self.names = list(rows)
        self._sizes = [len(each) for each in rows.values()]
        documents = [
            np.unique(np.concatenate([ngram_hashes(text) for text in strings(row)] or [ngram_hashes("")]))
            for row in chain.from_iterable(rows.values())
        ]
        joined = np.concatenate(documents) if documents else np.empty(0, dtype=np.uint64)
        self._document = np.repeat(np.arange(len(documents)), [len(hashes) for hashes in documents])
        self._hashes, self._inverse = np.unique(joined, return_inverse=True)
        self._matched = np.zeros(len(self._hashes), dtype=bool)

    def match(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each training text overlaps with a benchmark document; `counts` accumulates matches."""
        hashes_by_text = [ngram_hashes(text) for text in texts]
        owner = np.repeat(np.arange(len(texts)), [len(hashes) for hashes in hashes_by_text])
        hashes = np.concatenate(hashes_by_text)
        overlapping = np.zeros(len(texts), dtype=bool)
        if len(hashes) and len(self._hashes):
            index = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
            hit = self._hashes[index] == hashes
            self._matched[index[hit]] = True
            overlapping[owner[hit]] = True
        return overlapping

    def counts(self) -> dict[str, OverlapCount]:
        """Benchmark → overlap of its documents with all texts passed to `match`."""
        total = sum(self._sizes)
        long_enough = np.bincount(self._document, minlength=total) > 0
        overlapping = np.zeros(total, dtype=bool)
        overlapping[self._document[self._matched[self._inverse]]] = True
        ends = np.cumsum(self._sizes)
        return {
            name: OverlapCount(
                size, int(long_enough[end - size : end].sum()), int(overlapping[end - size : end].sum())
            )
            for name, size, end in zip(self.names, self._sizes, ends, strict=True)
        }


def suite_rows(suite: str, data_dir: Path | str | None) -> dict[str, list[Any]]:
    """Benchmark → rows of its documents; for generated benchmarks, the texts they are generated from."""
    from evalsuite.tasks.sources.data import open_source
    from evalsuite.tasks.sources.documents import documents
    from evalsuite.tasks.suite import load_suite, resolve

    data, loaded = open_source(data_dir), load_suite(suite)
    rows: dict[str, list[Any]] = {}
    for entry, benchmark in resolve(loaded):
        if benchmark.generated is None:
            found = documents(benchmark, data_dir=data_dir, limit=entry.limit, seed=loaded.seed)
            rows[benchmark.name] = [document.row for document in found]
        elif benchmark.generated.inputs:
            rows[benchmark.name] = [
                row
                for each in benchmark.generated.inputs
                for row in data.rows(each.dataset, each.config, each.split)
            ]
    return rows


def text_batches(name: str, source: DataSourceConfig, tokenizer: Any) -> Iterator[list[str]]:
    """The texts of a source in order, BATCH_SIZE at a time."""
    texts = (example.text for example in read_examples(name, source, tokenizer))
    while batch := list(islice(texts, BATCH_SIZE)):
        yield batch


def main() -> None:
    """Report the overlap between the training text of a recipe and a suite."""
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.distill.data.decontamination", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("recipe", help="a name from `evalsuite show recipes`, or a YAML file")
    parser.add_argument("suite", help="a name from `evalsuite show suites`, or a YAML file")
    parser.add_argument(
        "--data", help="frozen data of the benchmarks (default: EVALSUITE_DATA, else the hub)"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--out", type=Path, required=True, help="folder for the three files")
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    index = NgramIndex(suite_rows(arguments.suite, arguments.data))
    tokenizer = describe_checkpoint(recipe.teacher or recipe.student.shape_from or "").tokenizer
    training: dict[str, OverlapCount] = {}
    excluded: set[int] = set()
    for name, source in recipe.data.items():
        documents = overlapping = 0
        for texts in progress(text_batches(name, source, tokenizer), what=name):
            hit = index.match(texts)
            excluded.update(
                document_hash(text) for text, overlaps in zip(texts, hit, strict=True) if overlaps
            )
            documents, overlapping = documents + len(texts), overlapping + int(hit.sum())
        training[name] = OverlapCount(documents, documents, overlapping)
    arguments.out.mkdir(parents=True, exist_ok=True)
    _write(arguments.out / "overlap.csv", "benchmark", index.counts())
    _write(arguments.out / "overlap-training.csv", "source", training)
    lines = "".join(f"{number:016x}\n" for number in sorted(excluded))
    write_text(arguments.out / "overlap-exclude.txt", lines)
    for path in sorted(arguments.out.glob("overlap*.csv")):
        print(path.read_text())


def _write(path: Path, key: str, counts: Mapping[str, OverlapCount]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([key, "documents", "long_enough", "overlapping", "share"])
        for name, count in counts.items():
            share = count.overlapping / count.documents if count.documents else 0.0
            writer.writerow([name, count.documents, count.long_enough, count.overlapping, f"{share:.4f}"])


if __name__ == "__main__":
    main()

"""Which training documents share 13 words in a row with what a suite asks.

    python -m evalsuite.distill.overlap RECIPE SUITE --data DIR --out DIR

writes DIR/overlap.csv (evaluated documents of each benchmark that turn up in the training text),
DIR/overlap-training.csv (training documents of each source that hold such a run of words) and
DIR/overlap-exclude.txt, a list that a source's `exclude` takes. Words are runs of letters and digits in
lower case, as in arXiv 2005.14165, Appendix C; each string of a row counts on its own, so that no run
spans a question and its answer. Text is streamed: memory holds the evaluated side alone.
"""

import argparse
import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalsuite.distill.chat import chat_renderer
from evalsuite.distill.readers import Reader, document_hash, open_reader
from evalsuite.distill.recipe import load_recipe
from evalsuite.foundation import progress, write_text
from evalsuite.models import describe_checkpoint

GRAM = 13
"""Words in a row."""
GROUP = 2048
"""Training documents read, and looked up, together."""
_WORD = re.compile(r"[^\W_]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


@cache
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


def gram_hashes(text: str, length: int = GRAM) -> Hashes:
    """A 64-bit hash of every run of `length` words of a text; none if it has fewer words."""
    words = np.fromiter(map(_word_hash, _WORD.findall(text.lower())), dtype=np.uint64)
    count = len(words) - length + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        hashes = hashes * _FACTOR + words[place : place + count]
    return hashes


def strings(value: Any) -> Iterator[str]:
    """Every string inside a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(strings, value.values()))
    elif isinstance(value, Iterable):
        yield from chain.from_iterable(map(strings, value))


@dataclass(frozen=True)
class Count:
    """How many documents there are, how many are long enough to be looked for, and how many overlap."""

    documents: int
    long_enough: int
    overlapping: int


class Evaluated:
    """The evaluated documents of several benchmarks, as sorted hashes.

    Args:
        rows: benchmark → its rows; each row is a document.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self.names = list(rows)
        self._sizes = [len(each) for each in rows.values()]
        parts = [
            np.unique(np.concatenate([gram_hashes(text) for text in strings(row)] or [gram_hashes("")]))
            for row in chain.from_iterable(rows.values())
        ]
        joined = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)
        self._document = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        self._hashes, self._place = np.unique(joined, return_inverse=True)
        self._found = np.zeros(len(self._hashes), dtype=bool)

    def look_for(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which of some training documents overlap; what they hit is remembered."""
        parts = [gram_hashes(text) for text in texts]
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        hashes = np.concatenate(parts)
        overlapping = np.zeros(len(texts), dtype=bool)
        if len(hashes) and len(self._hashes):
            place = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
            hit = self._hashes[place] == hashes
            self._found[place[hit]] = True
            overlapping[owner[hit]] = True
        return overlapping

    def counts(self) -> dict[str, Count]:
        """Benchmark → its documents of which some run of words was found."""
        total = sum(self._sizes)
        long_enough = np.bincount(self._document, minlength=total) > 0
        overlapping = np.zeros(total, dtype=bool)
        overlapping[self._document[self._found[self._place]]] = True
        ends = np.cumsum(self._sizes)
        return {
            name: Count(
                size, int(long_enough[end - size : end].sum()), int(overlapping[end - size : end].sum())
            )
            for name, size, end in zip(self.names, self._sizes, ends, strict=True)
        }


def suite_rows(suite: str, data_dir: Path | str | None) -> dict[str, list[Any]]:
    """Benchmark → the rows that a suite asks; of generated ones the text that they are made from."""
    from evalsuite.tasks.data import open_source
    from evalsuite.tasks.documents import documents
    from evalsuite.tasks.suite import load_suite, resolve

    data, asked = open_source(data_dir), load_suite(suite)
    rows: dict[str, list[Any]] = {}
    for entry, benchmark in resolve(asked):
        if benchmark.generated is None:
            found = documents(benchmark, data_dir=data_dir, limit=entry.limit, seed=asked.seed)
            rows[benchmark.name] = [document.row for document in found]
        elif benchmark.generated.reads:
            rows[benchmark.name] = [
                row
                for each in benchmark.generated.reads
                for row in data.rows(each.dataset, each.config, each.split)
            ]
    return rows


def windows(reader: Reader) -> Iterator[list[str]]:
    """The documents of a source, some at a time, in their order."""
    position: dict[str, Any] | None = {}
    while position is not None:
        examples, position = reader.window(position)
        if examples:
            yield [example.text for example in examples]


def main() -> None:
    """Compare the training text of a recipe with a suite."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.distill.overlap", description=__doc__)
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
    evaluated = Evaluated(suite_rows(arguments.suite, arguments.data))
    tokenizer = describe_checkpoint(recipe.teacher or recipe.student.sizes_of or "").tokenizer
    training: dict[str, Count] = {}
    listed: set[int] = set()
    for name, source in recipe.data.items():
        documents = overlapping = 0
        source = source.model_copy(update={"shuffle": GROUP})
        render = chat_renderer(tokenizer, source.chat_template) if source.messages is not None else None
        for group in progress(windows(open_reader(source, name, render)), what=name):
            hit = evaluated.look_for(group)
            listed.update(document_hash(text) for text, overlaps in zip(group, hit, strict=True) if overlaps)
            documents, overlapping = documents + len(group), overlapping + int(hit.sum())
        training[name] = Count(documents, documents, overlapping)
    arguments.out.mkdir(parents=True, exist_ok=True)
    _write(arguments.out / "overlap.csv", "benchmark", evaluated.counts())
    _write(arguments.out / "overlap-training.csv", "source", training)
    listing = "".join(f"{number:016x}\n" for number in sorted(listed))
    write_text(arguments.out / "overlap-exclude.txt", listing)
    for path in sorted(arguments.out.glob("overlap*.csv")):
        print(path.read_text())


def _write(path: Path, what: str, counts: Mapping[str, Count]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([what, "documents", "long_enough", "overlapping", "share"])
        for name, count in counts.items():
            share = count.overlapping / count.documents if count.documents else 0.0
            writer.writerow([name, count.documents, count.long_enough, count.overlapping, f"{share:.4f}"])


if __name__ == "__main__":
    main()

"""Needles in training text: keys, values, templates and haystacks of a run's documents.

    python -m evalsuite.distill.data.decontamination.needles DOCUMENTS --text FILES --out OUT

DOCUMENTS are RUN/documents/needle_*.jsonl of a run that is built, FILES the training text (JSON lines, also
.zst, or parquet). It writes overlap-needles.csv: per file of documents, how many have a key or a value that
occurs in the text as it is, and how many have an 8-gram of words in it, in what all documents share
(templates) and in the rest (haystack and needles).
"""

import argparse
import glob
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evalsuite.distill.data.decontamination.ngrams import Hashes, ngram_hashes, strings
from evalsuite.distill.data.local_reader import file_chunks
from evalsuite.foundation import DataError, progress, read_jsonl, write_text
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser

NEEDLE_NGRAM_WORDS = 8
_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True)
class NeedleOverlap:
    """Documents of one file with a part that occurs in training text."""

    benchmark: str
    documents: int
    with_key: int
    """One of its keys occurs as it is, such as ``find-kettle``."""
    with_value: int
    """One of the numbers that it states or compares occurs."""
    with_ngram: int
    """An 8-gram outside the templates occurs."""
    largest_share: float
    """Of a document's 8-grams outside the templates that occur."""
    template_ngrams: int
    """8-grams that all documents share."""
    template_matches: int
    """Of these, the ones that occur."""


class _Documents:
    def __init__(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        self.name = name
        try:
            self.keys = [{_plain(key) for key in row["keys"]} for row in rows]
            self.values = [{str(value) for value in (*row["inside"], *row["outside"])} for row in rows]
            hashes = [np.unique(ngram_hashes(row["prompt"], NEEDLE_NGRAM_WORDS)) for row in rows]
        except KeyError as error:
            raise DataError(
                f"{name}: its documents have no {error}; these are no needles with choices"
            ) from None
        found, counts = np.unique(np.concatenate(hashes), return_counts=True)
        self.template = found[counts == len(rows)] if len(rows) > 1 else found[:0]
        self.hashes = [np.setdiff1d(each, self.template) for each in hashes]

    def overlap(self, words: set[str], numbers: set[str], ngrams: Hashes) -> NeedleOverlap:
        shares = [float(np.isin(each, ngrams).mean()) if len(each) else 0.0 for each in self.hashes]
        return NeedleOverlap(
            benchmark=self.name,
            documents=len(self.keys),
            with_key=sum(not keys.isdisjoint(words) for keys in self.keys),
            with_value=sum(not values.isdisjoint(numbers) for values in self.values),
            with_ngram=sum(share > 0 for share in shares),
            largest_share=max(shares, default=0.0),
            template_ngrams=len(self.template),
            template_matches=int(np.isin(self.template, ngrams).sum()),
        )


def _plain(key: str) -> str:
    """The hyphenated word of a key: its noun may consist of several words."""
    found = _HYPHENATED.search(key.lower())
    return found.group() if found else key.lower()


def needle_overlap(
    documents: dict[str, Sequence[dict[str, Any]]], texts: Iterable[str]
) -> list[NeedleOverlap]:
    """Compare the documents of benchmarks with training texts.

    Args:
        documents: benchmark → rows with `prompt`, `keys`, `inside` and `outside`.
        texts: training texts; read once.

    Raises:
        DataError: rows of another kind.
    """
    read = [_Documents(name, rows) for name, rows in documents.items() if rows]
    wanted_words = {key for each in read for keys in each.keys for key in keys}
    wanted_numbers = {value for each in read for values in each.values for value in values}
    all_hashes = [hashes for each in read for hashes in (each.template, *each.hashes)]
    wanted = np.unique(np.concatenate(all_hashes)) if all_hashes else np.empty(0, dtype=np.uint64)
    matched = np.zeros(len(wanted), dtype=bool)
    words: set[str] = set()
    numbers: set[str] = set()
    for text in texts:
        words |= wanted_words.intersection(_HYPHENATED.findall(text.lower()))
        numbers |= wanted_numbers.intersection(each.replace(",", "") for each in _NUMBER.findall(text))
        hashes = ngram_hashes(text, NEEDLE_NGRAM_WORDS)
        if len(wanted) and len(hashes):
            index = np.searchsorted(wanted, hashes).clip(max=len(wanted) - 1)
            matched[index[wanted[index] == hashes]] = True
    return [each.overlap(words, numbers, wanted[matched]) for each in read]


def texts_of(files: Iterable[Path]) -> Iterator[str]:
    """All strings of the rows of files. Raises DataError for one that cannot be read."""
    for path in files:
        for chunk in file_chunks(path):
            rows = map(_parsed, chunk) if isinstance(chunk, list) else chunk.to_pylist()
            for row in rows:
                yield from strings(row)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"a line of the training text is not JSON ({error})") from error


def main() -> None:
    """Report the overlap between needles and training text."""
    parser = Parser(prog="python -m evalsuite.distill.data.decontamination.needles", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("documents", nargs="+", type=Path, help="documents of a run that is built")
    parser.add_argument(
        "--text", nargs="+", required=True, metavar="FILES", help="training text, also patterns"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for overlap-needles.csv")
    arguments = parser.parse_args()
    files = [Path(name) for pattern in arguments.text for name in sorted(glob.glob(pattern))]
    missing = [path for path in arguments.documents if not path.is_file()]
    if missing or not files:
        what = str(missing[0]) if missing else f"--text {' '.join(arguments.text)}"
        raise DataError(f"{what}: no such file")
    documents: dict[str, Sequence[dict[str, Any]]] = {
        path.stem: [row["row"] for row in read_jsonl(path)] for path in arguments.documents
    }
    bar = progress(files, total=len(files), what="training text", unit="file")
    found = needle_overlap(documents, texts_of(bar))
    columns = [each.name for each in fields(NeedleOverlap)]
    table = pd.DataFrame([astuple(each) for each in found], columns=columns)
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = table.to_csv(index=False, float_format="%.5f", lineterminator="\n")
    write_text(arguments.out / "overlap-needles.csv", text)
    print(text)


if __name__ == "__main__":
    run_module("evalsuite.distill.data.decontamination.needles", main)

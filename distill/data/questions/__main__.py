"""Write the training questions of the recipe `generator`."""

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow

from evalsuite.distill.data import questions as package
from evalsuite.distill.data.local_reader import file_chunks
from evalsuite.distill.data.questions import corpora, promptsource
from evalsuite.distill.data.questions.formats import TrainingQuestion, generated
from evalsuite.foundation import DataError, progress
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser
from evalsuite.tasks.synthetic import english

NARRATIVES = ("novels", "standard_ebooks")
PROSE = ("wiki_c4_sample", "openstax_cc_by")
INSTRUCTIONS = ("t0_p3_50k", "flan_cot")
COUNTS = {"last_word": 60_000, "blanks": 12_000, "statements": 18_000}
"""Most questions of each kind that are made of running text."""
PLAIN_SHARE = 4
"""One question in this many is also written as a prompt of the log-likelihood protocol."""
TASKS = {"short_arithmetic": "arithmetic", "format_following": "instructions"}
"""Benchmark → task of `tasks.synthetic.english`."""

Make = Callable[[str, str, random.Random], Iterator[TrainingQuestion]]
"""(text, origin, random generator) → questions."""


def main() -> None:
    """Write one file per kind of question, and print how many questions each has, by origin."""
    parser = Parser(
        prog="python -m evalsuite.distill.data.questions",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with instruct/ and corpora/")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--generated",
        type=int,
        default=30_000,
        help="questions of each of the English tasks (default: 30000)",
    )
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    found = list(progress(_questions(arguments.data, arguments.seed, arguments.generated), what="questions"))
    rng.shuffle(found)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for kind in sorted({question.kind for question in found}):
        members = [question for question in found if question.kind == kind]
        _write(arguments.out / f"{kind}.jsonl.zst", [question.conversation() for question in members])
        print(kind, len(members), dict(Counter(question.origin for question in members).most_common(6)))
    plain = [question.completion() for question in found[::PLAIN_SHARE]]
    _write(arguments.out / "plain.jsonl.zst", plain)
    print("plain", len(plain))


def _questions(data: Path, seed: int, num_generated: int) -> Iterator[TrainingQuestion]:
    for name in INSTRUCTIONS:
        yield from promptsource.questions(_rows(data / "instruct" / f"{name}.jsonl.zst"))
    yield from islice(_from_text(data, NARRATIVES, corpora.last_words, 6, seed), COUNTS["last_word"])
    yield from islice(_from_text(data, PROSE, corpora.blanks, 20, seed), COUNTS["blanks"])
    yield from islice(_from_text(data, PROSE, corpora.statements, 20, seed), COUNTS["statements"])
    for benchmark, task in TASKS.items():
        for question in islice(english.questions(task, seed=seed), num_generated):
            yield generated(benchmark, question.prompt, question.answer)


def _from_text(
    data: Path, names: tuple[str, ...], make: Make, most: int, seed: int
) -> Iterator[TrainingQuestion]:
    """Questions of the documents of corpora in a shuffled order, at most `most` of each."""
    documents = [
        (name, row["text"]) for name in names for row in _rows(data / "corpora" / f"{name}.jsonl.zst")
    ]
    rng = random.Random(f"{seed} {' '.join(names)}")
    rng.shuffle(documents)
    for name, text in documents:
        yield from islice(make(text, name, rng), most)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file of JSON lines. Raises DataError if it cannot be read."""
    try:
        for lines in file_chunks(path):
            yield from map(json.loads, lines)
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with pyarrow.output_stream(str(path), compression="zstd") as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    run_module("evalsuite.distill.data.questions", main)

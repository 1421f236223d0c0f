"""Speed of the data loader: tokens per second, and the share of time that training would wait for data.

    python -m evalsuite.reports.studies.throughput.data_loader --out reports/results/distill

Writes documents of random words, trains a byte-level BPE tokenizer on them, and measures the loader of the
trainer with every number of worker processes: alone, and with a consumer that takes a batch as often as a
GPU with `--rate` tokens per second would. `trainer_seconds` is the processor time that data take of the
training process, whose threads share one interpreter, and `worker_seconds` that of the workers; neither
depends on what else runs on the machine. JSON lines are then read and parsed in growing number. Writes
data.csv and json_lines.csv. Exit code: 0 if training at `--rate` waits for less than 1 % of its time with
some number of workers, and the processor time of a row does not grow with the number of rows; 1 if not.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from evalsuite.cli.exit_codes import guarded
from evalsuite.distill.data.loader import DataSources, StageDataLoader, prefetch
from evalsuite.distill.data.preparation import read_examples
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.data_sources import LocalSourceConfig
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import progress, write_csv
from evalsuite.foundation.parser import Parser

MAX_WAITING = 0.01
MAX_GROWTH = 1.3
"""Time of a row among most rows over that among fewest."""
END = "<|end|>"
SEQ_LEN, BATCH_SIZE = 2048, 16
DOCUMENT_WORDS = 800


@dataclass(frozen=True)
class Loading:
    """The loader with one number of workers.

    `ratio`: tokens per second over those without workers. `waiting`: share of the time that a consumer of
    `rate` tokens per second waits, after the first batch.
    """

    num_workers: int
    tokens_per_second: float
    ratio: float
    trainer_seconds: float
    """Processor seconds of the training process per million tokens."""
    worker_seconds: float
    """The same of all worker processes together."""
    first_batch_seconds: float
    rate: float
    waiting: float


def write_documents(path: Path, count: int, *, words: int = DOCUMENT_WORDS) -> None:
    """Write JSON lines with documents of random words, about 5.5 characters each."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkq"))
    lengths = generator.integers(2, 10, 20_000)
    vocabulary = np.array(["".join(generator.choice(letters, length)) for length in lengths])
    # Word frequencies follow Zipf's law, as in language.
    weights = 1 / np.arange(1, len(vocabulary) + 1)
    with open(path, "w") as file:
        for _ in range(count):
            size = int(generator.integers(words // 2, words * 3 // 2, endpoint=True))
            text = " ".join(generator.choice(vocabulary, size, p=weights / weights.sum()))
            file.write(json.dumps({"text": text}) + "\n")


def train_tokenizer(path: Path, vocab_size: int = 16_000) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the documents."""
    tokenizer = ByteLevelBPETokenizer()
    with open(path) as file:
        texts = [json.loads(line)["text"] for line in islice(file, 500)]
    tokenizer.train_from_iterator(texts, vocab_size=vocab_size, special_tokens=[END], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=END)


def make_recipe(path: Path) -> Recipe:
    """A recipe that reads the documents."""
    stage = {"name": "kd", "objective": "kd", "data": "text", "tokens": "100B", "lr": 1e-3}
    return Recipe.model_validate(
        {
            "name": "throughput",
            "teacher": "teacher",
            "data": {"text": {"kind": "local", "files": [str(path)], "shuffle_buffer_size": 4096}},
            "stages": [{**stage, "seq_len": SEQ_LEN, "batch_size": BATCH_SIZE}],
        }
    )


def measure(recipe: Recipe, tokenizer: Any, num_workers: int, *, steps: int, rate: float) -> Loading:
    """Measure the loader; `ratio` is 1."""
    sources = DataSources(recipe.data, tokenizer, seed=recipe.seed, num_workers=num_workers)
    try:
        began = time.perf_counter()
        batches = prefetch(islice(StageDataLoader(sources, recipe.stages[0]), 2 * steps))
        next(batches)
        first = time.perf_counter() - began
        began, processor, tokens = time.perf_counter(), np.array([time.process_time(), worker_seconds()]), 0
        for batch in islice(batches, steps):
            tokens += batch.tokens
        seconds = time.perf_counter() - began
        processor = np.array([time.process_time(), worker_seconds()]) - processor
        waiting = share_of_waiting(batches, rate)
    finally:
        sources.close()
    in_trainer, in_workers = (1e6 * processor / tokens).tolist()
    return Loading(num_workers, tokens / seconds, 1.0, in_trainer, in_workers, first, rate, waiting)


def worker_seconds() -> float:
    """Processor seconds of the running worker processes so far (Linux)."""
    ticks = 0
    for process in multiprocessing.active_children():
        # Fields 14 and 15 are the time in user and in system mode; the name in parentheses may hold blanks.
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def share_of_waiting(batches: Iterator[GlobalBatch], rate: float) -> float:
    """Share of the time that a consumer of `rate` tokens per second waits for its next batch."""
    waited, began = 0.0, time.perf_counter()
    while True:
        requested = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - requested
        if batch is None:
            return waited / (time.perf_counter() - began)
        time.sleep(batch.tokens / rate)


def seconds_per_row(path: Path, count: int, tokenizer: Any) -> float:
    """Processor time to read and parse one JSON line of `count`."""
    source, began = LocalSourceConfig(kind="local", files=[str(path)]), time.process_time()
    num_read = sum(1 for _ in read_examples("lines", source, tokenizer))
    if num_read != count:
        raise RuntimeError(f"{path}: {num_read} of {count} rows were read")
    return (time.process_time() - began) / count


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a CSV file with four significant digits."""
    lines = ([f"{v:.4g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
    write_csv(path, rows[0], lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and write the tables."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two tables")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="numbers of processes")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100, help="batches of 32,768 tokens per measurement")
    parser.add_argument("--rate", type=float, default=200_000, help="tokens per second of the training")
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7], help="JSON lines")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "documents.jsonl")
        write_documents(path, options.documents)
        tokenizer, recipe = train_tokenizer(path), make_recipe(path)
        found = [
            measure(recipe, tokenizer, num_workers, steps=options.steps, rate=options.rate)
            for num_workers in progress(options.workers, what="workers")
        ]
        write_table(
            options.out / "data.csv",
            [
                {**asdict(each), "ratio": each.tokens_per_second / found[0].tokens_per_second}
                for each in found
            ],
        )
        lines = []
        for count in progress(options.rows, what="JSON lines"):
            path = Path(folder, "lines.jsonl")
            with open(path, "w") as file:
                file.writelines(f'{{"text": "document {number}", "score": 3}}\n' for number in range(count))
            lines.append(
                {"rows": count, "microseconds_per_row": 1e6 * seconds_per_row(path, count, tokenizer)}
            )
        write_table(options.out / "json_lines.csv", lines)
    growth = lines[-1]["microseconds_per_row"] / lines[0]["microseconds_per_row"]
    waiting = min(each.waiting for each in found)
    print(
        f"waiting at {options.rate:,.0f} tokens/s: {100 * waiting:.2f} % of the time; "
        f"time of a row: {growth:.2f} times as long among {lines[-1]['rows']:,} rows"
    )
    return int(waiting > MAX_WAITING or growth > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(guarded("data_loader", main, resumable=False))

"""Judge: the harness metrics turn answers into records. Needs the run folder alone."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from evalsuite.evaluator.asking import benchmarks_of
from evalsuite.evaluator.environment import fingerprints, read
from evalsuite.evaluator.layout import Asked, Cell, Index, read_questions
from evalsuite.evaluator.render import Harness, harness_of
from evalsuite.foundation import RunFolderError, progress
from evalsuite.models.engine.requests import GenerateAnswer
from evalsuite.models.engine.store import AnswerStore, Key
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.question import Judgement, Question
from evalsuite.protocols.time_limit import each_formula_read_once
from evalsuite.reports.reading import recorded_keys
from evalsuite.reports.records import Record, append_records, records_path
from evalsuite.tasks.resources import provide

FLUSH_SECONDS = 2.0
"""Records are written this often; what a kill loses is judged again."""
WORTH = 20_000
"""Fewest records for which processes of their own are started, each of which loads both harnesses."""
MOST_WORKERS = 8
WRITTEN = 16
"""So many written tokens take about as long to judge as a ranked answer does."""
LONG = 1_000
"""Written answers to one benchmark from which the processes share it."""


def judge(run: Path, index: Index, *, workers: int | None = 1, quiet: bool = False) -> int:
    """Record every answer that is not recorded yet.

    Args:
        run, index: what was asked.
        workers: processes that share the benchmarks; None takes one per processor where there is much to do.
            More than one import the main module again, as multiprocessing does.
        quiet: no progress bar.

    Returns:
        How many answers are still missing; a whole run has none.

    Raises:
        DataError: answers, documents or records that are not sound.
        MissingDependencyError: a resource that a metric reads is not there.
        RunFolderError: the records cannot be written, or a process was killed; none is half-written.
    """
    run = Path(run)
    asked = [cell.documents * len(cell.seeds) * len(index.checkpoints) for cell in index.cells]
    recorded = [_lines(records_path(run, cell.benchmark, cell.protocol)) for cell in index.cells]
    left = [max(0, count - there) for count, there in zip(asked, recorded, strict=True)]
    if workers is None:
        workers = min(MOST_WORKERS, _processors()) if sum(left) >= WORTH else 1
    with progress(total=sum(asked), what="judge", unit="doc", quiet=quiet) as bar:
        if workers < 2:
            judges = _Judges(run, index)
            return sum(judges.cell(cell, index.checkpoints, bar.update) for cell in index.cells)
        tasks = [
            (_weight(cell) * count // shares, cell, number, shares)
            for cell, count in zip(index.cells, left, strict=True)
            for shares in [workers if cell.how is not None and count >= LONG else 1]
            for number in range(shares)
        ]
        # The longest first, so that all end together.
        tasks.sort(key=lambda task: -task[0])
        missing = 0
        # Forking a process that has loaded data sets and their threads may lock it up.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(run, index)) as pool:
            try:
                for future in as_completed([pool.submit(_judge, *task[1:]) for task in tasks]):
                    judged, lacking = future.result()
                    missing += lacking
                    bar.update(judged)
            except BrokenProcessPool as error:
                raise RunFolderError(
                    f"{run}: a process that judged was killed, perhaps for want of memory; the same command "
                    "goes on where it stopped"
                ) from error
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return missing


def _weight(cell: Cell) -> int:
    return 1 if cell.how is None else 1 + cell.how.max_new_tokens // WRITTEN


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(path: Path) -> int:
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


_mine: "_Judges | None" = None
"""Of a process that judges for another one."""


def _start(run: Path, index: Index) -> None:
    global _mine
    # An interruption is the parent's to handle: it cancels what has not begun.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _mine = _Judges(run, index)


def _judge(cell: Cell, number: int, shares: int) -> tuple[int, int]:
    """Judge one share of a cell: how many answers are recorded now, and how many are missing."""
    assert _mine is not None
    counts: list[int] = []
    missing = _mine.cell(cell, _mine.index.checkpoints[number::shares], counts.append)
    return sum(counts), missing


class _Judges:
    """Judges the cells of one run; answers are read once for all of them."""

    def __init__(self, run: Path, index: Index) -> None:
        self.run, self.index = run, index
        self.store = AnswerStore(run / "answers")
        self.known = fingerprints(run)
        self.benchmarks, self.data = benchmarks_of(index), read(run).get("data")

    def cell(self, cell: Cell, checkpoints: Sequence[Asked], moved: Callable[[int], object]) -> int:
        """Record what is not recorded yet of one cell, and return how many answers are missing."""
        cases = list(_cases(self.run, checkpoints, cell, self.store, self.known))
        done = recorded_keys(self.run, cell.benchmark, cell.protocol) if cases else set()
        pending = [case for case in cases if case.key not in done]
        moved(len(cases) - len(pending))
        missing = cell.documents * len(cell.seeds) * len(checkpoints) - len(cases)
        if not pending:
            return missing
        for resource in self.benchmarks[cell.benchmark].resources:
            provide(resource, self.data)
        harness = harness_of(self.run, self.index, cell)
        batch: list[Record] = []
        flushed = time.monotonic()
        with each_formula_read_once() if cell.how is not None else nullcontext():
            for number, case in enumerate(pending, 1):
                batch.append(case.record(harness))
                if number == len(pending) or time.monotonic() - flushed > FLUSH_SECONDS:
                    append_records(self.run, batch)
                    moved(len(batch))
                    batch, flushed = [], time.monotonic()
        return missing


class _Case:
    """The answers of one checkpoint to one question under one seed."""

    def __init__(
        self, asked: Asked, fingerprint: str, cell: Cell, number: int, question: Question, seed: int
    ) -> None:
        how = cell.how
        self.asked = asked
        self.cell = cell
        self.number = number
        self.question = question
        self.given: list[Any] = []
        self.identity: Mapping[str, Any] = {
            "weights_id": asked.weights_id,
            "fingerprint": fingerprint,
            "benchmark": cell.benchmark,
            "protocol": cell.protocol,
            "seed": seed,
            "context": question.context,
            "doc_id": question.doc_id,
            "prompt_hash": question.prompt_hash,
            "sampling": how.key() if how is not None else "",
        }

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """As `Record.key`."""
        return tuple(self.identity.values())

    def record(self, harness: Harness) -> Record:
        """Judge the answers."""
        found = self._judged(harness)
        return Record(
            **self.identity,
            checkpoint=self.asked.label,
            values=found.values,
            chance=found.chance,
            outcome=found.outcome,
            detail=found.detail,
        )

    def _judged(self, harness: Harness) -> Judgement:
        if isinstance(harness, LogLikelihoodBenchmark):
            return harness.judge(self.number, self.question, self.given)
        (answer,) = self.given
        assert isinstance(answer, GenerateAnswer)
        return harness.judge(self.number, answer)


def _keys(cell: Cell, question: Question) -> list[list[Key]]:
    """Per seed, the keys of the requests whose answers are judged together."""
    keys = [request.key() for request in cell.requests(question)]
    return [keys] if cell.how is None else [[key] for key in keys]


def _cases(
    run: Path, checkpoints: Sequence[Asked], cell: Cell, store: AnswerStore, known: Mapping[str, str]
) -> Iterator[_Case]:
    """Every question of a cell that has all its answers, checkpoint by checkpoint."""
    questions: dict[str, list[tuple[Question, list[list[Key]]]]] = {}
    for asked in checkpoints:
        fingerprint = known.get(asked.weights_id)
        if fingerprint is None:
            continue
        if asked.tokenizer not in questions:
            # Hashing a request takes longer than looking its answer up: once for all checkpoints.
            questions[asked.tokenizer] = [
                (question, _keys(cell, question)) for question in read_questions(run, asked.tokenizer, cell)
            ]
        for number, (question, groups) in enumerate(questions[asked.tokenizer]):
            for seed, group in zip(cell.seeds, groups, strict=True):
                case = _Case(asked, fingerprint, cell, number, question, seed)
                case.given = [store.find(fingerprint, key) for key in group]
                if all(given is not None for given in case.given):
                    yield case

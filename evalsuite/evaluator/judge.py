"""Judge: the harness metrics turn answers into records. Needs the run folder alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalsuite.evaluator.asking import benchmarks_of
from evalsuite.evaluator.environment import fingerprints, read
from evalsuite.evaluator.layout import Asked, Cell, Index, read_questions
from evalsuite.evaluator.render import Harness, harness_of
from evalsuite.foundation import progress
from evalsuite.models.engine.requests import GenerateAnswer
from evalsuite.models.engine.store import AnswerStore, Key
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.question import Judgement, Question
from evalsuite.reports.reading import recorded_keys
from evalsuite.reports.records import Record, append_records
from evalsuite.tasks.resources import provide

BATCH = 200
"""Records that are written at once."""


def judge(run: Path, index: Index, *, quiet: bool = False) -> int:
    """Record every answer that is not recorded yet, in the order of the plan.

    Returns:
        How many answers are still missing; a whole run has none.

    Raises:
        DataError: answers, documents or records that are not sound.
        MissingDependencyError: a resource that a metric reads is not there.
        RunFolderError: the records cannot be written; none is half-written.
    """
    store = AnswerStore(Path(run) / "answers")
    known = fingerprints(run)
    benchmarks, data = benchmarks_of(index), read(run).get("data")
    missing = 0
    total = sum(cell.documents * len(cell.seeds) for cell in index.cells) * len(index.checkpoints)
    with progress(total=total, what="judge", unit="doc", quiet=quiet) as bar:
        for cell in index.cells:
            cases = list(_cases(run, index, cell, store, known))
            done = recorded_keys(run, cell.benchmark, cell.protocol) if cases else set()
            pending = [case for case in cases if case.key not in done]
            bar.update(len(cases) - len(pending))
            missing += cell.documents * len(cell.seeds) * len(index.checkpoints) - len(cases)
            if not pending:
                continue
            for resource in benchmarks[cell.benchmark].resources:
                provide(resource, data)
            harness = harness_of(run, index, cell)
            for start in range(0, len(pending), BATCH):
                batch = pending[start : start + BATCH]
                append_records(run, [case.record(harness) for case in batch])
                bar.update(len(batch))
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
    run: Path, index: Index, cell: Cell, store: AnswerStore, known: Mapping[str, str]
) -> Iterator[_Case]:
    """Every question of a cell that has all its answers, checkpoint by checkpoint."""
    questions: dict[str, list[tuple[Question, list[list[Key]]]]] = {}
    for asked in index.checkpoints:
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

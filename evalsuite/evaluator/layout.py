"""The files between the steps, beside those that the reports read (`evalsuite.reports.run_folder`).

    documents/<benchmark>.jsonl                          the questions, as rows of their source
    requests/index.json                                  what is asked of whom; written last
    requests/<tokenizer>/<benchmark>.<protocol>.jsonl    the questions as token ids
    answers/<fingerprint>.<verb>.jsonl                   see `evalsuite.models.engine.store`

Everything here needs the standard library and the engine's request types alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, RunFolderError, read_json, read_jsonl, write_json, write_text
from evalsuite.models.engine.requests import Request, Sampling
from evalsuite.protocols.question import Question

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One checkpoint of a run: whom requests go to."""

    label: str
    path: str
    weights_id: str
    tokenizer: str
    """Names the folder of its requests: checkpoints with equal tokenizers share them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One benchmark under one protocol."""

    benchmark: str
    protocol: str
    documents: int
    sampling: Mapping[str, Any] | None = None
    seeds: tuple[int, ...] = (0,)

    @property
    def how(self) -> Sampling | None:
        """How answers are written; None under log-likelihood."""
        if self.sampling is None:
            return None
        return Sampling(**{**self.sampling, "stop": tuple(self.sampling["stop"])})

    def requests(self, question: Question) -> list[Request]:
        """Everything that the engine is asked for one question: choices, or one answer per seed."""
        how = self.how
        if how is None:
            return list(question.scores)
        return [question.generation(how, seed) for seed in self.seeds]


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """`requests/index.json`."""

    suite: str
    asked: Mapping[str, Any]
    """The resolved suite and its benchmarks: two runs with equal ones ask the same."""
    cells: tuple[Cell, ...]
    checkpoints: tuple[Asked, ...]

    @property
    def labels(self) -> dict[str, str]:
        """weights_id → label."""
        return {each.weights_id: each.label for each in self.checkpoints}


def index_path(run: Path) -> Path:
    """Where the index lies."""
    return Path(run) / "requests" / "index.json"


def write_index(run: Path, index: Index) -> None:
    """Write the index, atomically."""
    write_json(index_path(run), {"schema": SCHEMA, **asdict(index)})


def read_index(run: Path) -> Index:
    """Read the index.

    Raises:
        RunFolderError: nothing was rendered here, or by an evalsuite with another schema.
        DataError: the file is not an index.
    """
    path = index_path(run)
    if not path.is_file():
        raise RunFolderError(f"{run}: nothing is rendered here yet (no requests/index.json)")
    value = read_json(path)
    if value.get("schema") != SCHEMA:
        raise RunFolderError(f"{path}: schema {value.get('schema')!r}; this evalsuite reads {SCHEMA}")
    try:
        return Index(
            suite=value["suite"],
            asked=value["asked"],
            cells=tuple(Cell(**{**cell, "seeds": tuple(cell["seeds"])}) for cell in value["cells"]),
            checkpoints=tuple(Asked(**checkpoint) for checkpoint in value["checkpoints"]),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not an index of requests ({error!r})") from error


def questions_path(run: Path, tokenizer: str, cell: Cell) -> Path:
    """Where the questions of one cell lie for one tokenizer."""
    return Path(run) / "requests" / tokenizer / f"{cell.benchmark}.{cell.protocol}.jsonl"


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write questions as one whole file, atomically."""
    _write_lines(path, (question.row() for question in questions))


def read_questions(run: Path, tokenizer: str, cell: Cell) -> list[Question]:
    """Read the questions of one cell.

    Raises:
        DataError: the file is missing, or does not hold as many questions as the index says.
    """
    path = questions_path(run, tokenizer, cell)
    found = [Question.from_row(row) for row in _lines(path)]
    if len(found) != cell.documents:
        raise DataError(f"{path}: holds {len(found)} questions, not {cell.documents}; render again")
    return found


def documents_path(run: Path, benchmark: str) -> Path:
    """Where the documents of one benchmark lie."""
    return Path(run) / "documents" / f"{benchmark}.jsonl"


def write_documents(path: Path, documents: Iterable[Any]) -> None:
    """Write documents (`evalsuite.tasks.documents.Document`) as one whole file, atomically."""
    _write_lines(path, (asdict(document) for document in documents))


def read_documents(run: Path, benchmark: str) -> list[Any]:
    """Read the documents of one benchmark. Raises DataError if they are missing or torn."""
    from evalsuite.tasks.documents import Document

    path = documents_path(run, benchmark)
    try:
        return [Document(**row) for row in _lines(path)]
    except TypeError as error:
        raise DataError(f"{path}: not documents ({error})") from error


def cell_documents(documents: Sequence[Any], cell: Cell, seed: int) -> list[Any]:
    """The documents of a benchmark that one of its protocols is asked: all, or a seeded sample.

    Args:
        documents: all that are asked under either protocol.
        cell: says how many.
        seed: of the suite.
    """
    if cell.documents >= len(documents):
        return list(documents)
    from evalsuite.tasks.documents import sample

    return sample(documents, cell.documents, seed)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; render again")
    return read_jsonl(path)

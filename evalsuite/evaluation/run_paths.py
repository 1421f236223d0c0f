"""Files exchanged between the phases of a run, and their schema.

    documents/<benchmark>.jsonl                          documents, as rows of their source
    requests/index.json                                  resolved suite and checkpoints; written last
    requests/<tokenizer>/<benchmark>.<protocol>.jsonl    requests as token ids
    responses/<fingerprint>.<verb>.jsonl                 see `evalsuite.models.inference.response_cache`

`evalsuite.reports.records.run_folder` owns the files that the reports read. This module needs only the
standard library and the request types, so that it also works on a GPU host without pydantic.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, RunFolderError, read_json, read_jsonl, write_json, write_text
from evalsuite.foundation.context_limits import ContextLimit, context_name
from evalsuite.models.inference.requests import Request, SamplingParams
from evalsuite.protocols.request_set import RequestSet

SCHEMA = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRef:
    """One checkpoint of a run, as the request index names it."""

    label: str
    path: str
    weights_id: str
    tokenizer: str
    """Folder of its requests; checkpoints with equal tokenizers share it."""
    positions: int | None = None
    """Positions that its config states; None: it states none, or the index is older."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One benchmark under one protocol: the unit in which requests are built and scored."""

    benchmark: str
    protocol: str
    documents: int
    sampling: Mapping[str, Any] | None = None
    seeds: tuple[int, ...] = (0,)

    @property
    def sampling_params(self) -> SamplingParams | None:
        """Sampling of the responses; None under log-likelihood."""
        if self.sampling is None:
            return None
        return SamplingParams(**{**self.sampling, "stop": tuple(self.sampling["stop"])})

    def requests(self, request_set: RequestSet) -> list[Request]:
        """Return the engine's requests for one document: its choices, or one generation per seed."""
        sampling = self.sampling_params
        if sampling is None:
            return list(request_set.score_requests)
        return [request_set.generate_request(sampling, seed) for seed in self.seeds]


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """Contents of `requests/index.json`."""

    suite: str
    config: Mapping[str, Any]
    """The resolved suite with its benchmarks; runs with equal configs have equal requests."""
    cells: tuple[Cell, ...]
    checkpoints: tuple[CheckpointRef, ...]

    @property
    def labels(self) -> dict[str, str]:
        """weights_id → label."""
        return {each.weights_id: each.label for each in self.checkpoints}

    def limit(self, checkpoint: CheckpointRef) -> ContextLimit:
        """Return which contexts a checkpoint reads."""
        return ContextLimit(checkpoint.positions, self.config.get("max_length"))

    def num_rows(self, checkpoint: CheckpointRef, cell: Cell, documents: Sequence[Any]) -> int:
        """Return the number of score rows of a checkpoint in a complete cell with these documents."""
        limit = self.limit(checkpoint)
        return len(cell.seeds) * sum(limit.reads(document.context) for document in documents)

    @property
    def unread(self) -> dict[str, dict[str, str]]:
        """Label → contexts that the checkpoint is not evaluated on, by name, and why; without empty ones."""
        found = {each.label: unread_contexts(self.config, self.limit(each)) for each in self.checkpoints}
        return {label: contexts for label, contexts in found.items() if contexts}


def unread_contexts(config: Mapping[str, Any], limit: ContextLimit) -> dict[str, str]:
    """Return the contexts of a resolved suite that are beyond a limit, by name, and why.

    Args:
        config: as `Index.config`.
        limit: of a checkpoint.
    """
    return {
        context_name(entry["benchmark"]["name"], context): limit.reason
        for entry in config["entries"]
        for context in entry["contexts"]
        if not limit.reads(context)
    }


def responses_folder(run: Path) -> Path:
    """Return the folder of a run's responses."""
    return Path(run) / "responses"


def index_path(run: Path) -> Path:
    """Return the path of the request index."""
    return Path(run) / "requests" / "index.json"


def write_index(run: Path, index: Index) -> None:
    """Write the request index, atomically."""
    write_json(index_path(run), {"schema": SCHEMA, **asdict(index)})


def read_index(run: Path) -> Index:
    """Read the request index.

    Raises:
        RunFolderError: no requests were built here, or by an evalsuite with another schema.
        DataError: the file is not a request index.
    """
    path = index_path(run)
    if not path.is_file():
        raise RunFolderError(f"{run}: no requests were built here (no requests/index.json)")
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a request index, but a {type(value).__name__}")
    schema = value.get("schema")
    if schema != SCHEMA:
        raise RunFolderError(
            f"{path}: run folder of schema {schema!r}, this evalsuite reads schema {SCHEMA}; repeat "
            "`evalsuite run` with a new --out"
        )
    try:
        names = [entry["benchmark"]["name"] for entry in value["config"]["entries"]]
        if not all(isinstance(each, str) for each in (value["suite"], *names)):
            raise TypeError("suite and benchmarks must have names")
        return Index(
            suite=value["suite"],
            config=value["config"],
            cells=tuple(Cell(**{**cell, "seeds": tuple(cell["seeds"])}) for cell in value["cells"]),
            checkpoints=tuple(CheckpointRef(**checkpoint) for checkpoint in value["checkpoints"]),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not a request index ({error!r})") from error


def requests_path(run: Path, tokenizer: str, cell: Cell) -> Path:
    """Return the path of one cell's requests for one tokenizer."""
    return Path(run) / "requests" / tokenizer / f"{cell.benchmark}.{cell.protocol}.jsonl"


def write_requests(path: Path, request_sets: Iterable[RequestSet]) -> None:
    """Write the requests of one cell to a file, atomically."""
    _write_lines(path, (request_set.to_row() for request_set in request_sets))


def read_requests(run: Path, tokenizer: str, cell: Cell) -> list[RequestSet]:
    """Read the requests of one cell.

    Raises:
        DataError: the file is missing or damaged, or its number of documents differs from the index.
    """
    path = requests_path(run, tokenizer, cell)
    found = []
    for number, row in enumerate(_lines(path), 1):
        try:
            found.append(RequestSet.from_row(row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not a request ({error!r})") from error
    if len(found) != cell.documents:
        raise DataError(
            f"{path}: {len(found)} documents, expected {cell.documents}; build the requests again"
        )
    return found


def documents_path(run: Path, benchmark: str) -> Path:
    """Return the path of a benchmark's documents."""
    return Path(run) / "documents" / f"{benchmark}.jsonl"


def write_documents(path: Path, documents: Iterable[Any]) -> None:
    """Write documents (`evalsuite.tasks.sources.documents.Document`) to a file, atomically."""
    _write_lines(path, (asdict(document) for document in documents))


def read_documents(run: Path, benchmark: str) -> list[Any]:
    """Read the documents of one benchmark. Raises DataError if they are missing or truncated."""
    from evalsuite.tasks.sources.documents import Document

    path = documents_path(run, benchmark)
    try:
        return [Document(**row) for row in _lines(path)]
    except TypeError as error:
        raise DataError(f"{path}: not a file of documents ({error})") from error


def cell_documents(documents: Sequence[Any], cell: Cell, seed: int) -> list[Any]:
    """Return the documents of a benchmark under one protocol: all of them, or a seeded sample.

    Args:
        documents: the union over both protocols.
        cell: gives the number of documents.
        seed: of the suite.
    """
    if cell.documents >= len(documents):
        return list(documents)
    from evalsuite.tasks.sources.documents import sample_documents

    return sample_documents(documents, cell.documents, seed)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; build the requests again")
    return read_jsonl(path, appended=False)

"""Files exchanged between the phases of a run, and their schema.

    documents/<benchmark>.jsonl                          documents, as rows of their source
    requests/<tokenizer>/<benchmark>.<protocol>.jsonl    requests as token ids
    responses/<fingerprint>.<verb>.jsonl                 see `evalsuite.models.inference.response_cache`

`evalsuite.reports.run` owns the manifest, which the build phase writes last. This module needs only the
standard library and the request types, so that it also works on a GPU host without pydantic.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.foundation import ConfigError, DataError, RunFolderError, nearest, read_jsonl, write_text
from evalsuite.foundation.cache_folder import cache_folder
from evalsuite.foundation.context_limits import ContextLimit, context_name
from evalsuite.models.inference.requests import Request, SamplingParams
from evalsuite.protocols.request_set import RequestSet
from evalsuite.reports.run import Checkpoint, Manifest, manifest_path, read_manifest

if TYPE_CHECKING:
    from evalsuite.models.inference.response_cache import ResponseCache


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One benchmark under one protocol: the unit in which requests are built and scored."""

    benchmark: str
    protocol: str
    documents: int
    sampling: Mapping[str, Any] | None = None
    seeds: tuple[int, ...] = (0,)
    sampler: str = "seeded"
    """Which documents a limit takes."""

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


def read_built(run: Path) -> Manifest:
    """Read the manifest of a run whose requests are built.

    Raises:
        RunFolderError: as `read_manifest`, or there are no requests.
        DataError: as `read_manifest`, or the resolved suite is damaged.
    """
    manifest = read_manifest(run)
    if not manifest.config:
        raise RunFolderError(f"{run}: holds scores without requests; choose another --out to evaluate")
    try:
        _ = [cell.sampling_params for cell in cells_of(manifest)], manifest.seeds
        if not isinstance(manifest.config["seed"], int):
            raise TypeError("'seed' is not an integer")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{manifest_path(run)}: 'config' is no resolved suite ({error!r})") from error
    return manifest


def cells_of(manifest: Manifest) -> tuple[Cell, ...]:
    """Return every benchmark of a run under each of its protocols, as its requests are built and scored."""
    entries = {entry["benchmark"]["name"]: entry for entry in manifest.config["entries"]}
    return tuple(
        Cell(
            benchmark=benchmark.name,
            protocol=protocol,
            documents=how.total,
            sampling=entries[benchmark.name]["sampling"] if protocol == "generation" else None,
            seeds=how.seeds,
            sampler=entries[benchmark.name].get("sampler", "seeded"),
        )
        for benchmark in manifest.benchmarks
        for protocol, how in benchmark.protocols.items()
    )


def batches_of_cells(manifest: Manifest, batches: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Return the cells of batches of benchmarks, by name; without batches all cells, as one batch.

    Benchmarks that were left out of the run are left out here, too.

    Raises:
        ConfigError: a benchmark that is not in the run, or is listed twice; all were left out.
    """
    cells = cells_of(manifest)
    if not batches:
        return [list(cells)]
    known = list(dict.fromkeys(cell.benchmark for cell in cells))
    seen: set[str] = set()
    left_out = manifest.left_out
    batches = [[name for name in batch if name in known or name not in left_out] for batch in batches]
    if not any(batches):
        raise ConfigError(
            "; ".join(f"benchmark '{name}' was left out: {why}" for name, why in left_out.items())
        )
    for name in (name for batch in batches for name in batch):
        if name not in known:
            raise ConfigError(f"benchmark '{name}' is not in this run{nearest(name, known)}")
        if name in seen:
            raise ConfigError(f"benchmark '{name}' is listed twice")
        seen.add(name)
    return [[cell for cell in cells if cell.benchmark in batch] for batch in batches]


def num_rows(manifest: Manifest, checkpoint: Checkpoint, cell: Cell, documents: Sequence[Any]) -> int:
    """Return the number of score rows of a checkpoint in a complete cell with these documents."""
    limit = manifest.limit(checkpoint)
    return len(cell.seeds) * sum(limit.reads(document.context) for document in documents)


def unread_contexts(config: Mapping[str, Any], limit: ContextLimit) -> dict[str, str]:
    """Return the contexts of a resolved suite that are beyond a limit, by name, and why.

    Args:
        config: as `Manifest.config`.
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


def shared_folder() -> Path | None:
    """Return the folder of the responses that runs share; None if the user has no cache."""
    cache = cache_folder()
    return None if cache is None else cache / "responses"


def open_responses(run: Path, manifest: Manifest) -> "ResponseCache":
    """Return the responses of a run with this manifest.

    Raises:
        DataError: a log of no engine of the run; and as `ResponseCache`.
    """
    from evalsuite.models.inference.response_cache import ResponseCache
    from evalsuite.models.inference.settling import rounding

    tolerances = {each.fingerprint: rounding(each.versions) for each in manifest.engines.values()}
    for log in sorted(responses_folder(run).glob("*.jsonl")):
        if log.name.split(".")[0] not in tolerances:
            raise DataError(
                f"{log}: {manifest_path(run)} names no engine with this fingerprint; restore that file, "
                "or remove the log"
            )
    return ResponseCache(responses_folder(run), tolerances)


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
    rows = (asdict(document) for document in documents)
    _write_lines(path, ({k: v for k, v in row.items() if k != "prefix" or v} for row in rows))


def read_documents(run: Path, benchmark: str) -> list[Any]:
    """Read the documents of one benchmark. Raises DataError if they are missing or truncated."""
    from evalsuite.tasks.sources.documents import Document

    path = documents_path(run, benchmark)
    try:
        return [Document(**row) for row in _lines(path)]
    except TypeError as error:
        raise DataError(f"{path}: not a file of documents ({error})") from error


def cell_documents(documents: Sequence[Any], cell: Cell, seed: int) -> list[Any]:
    """Return the documents of a benchmark under one protocol: all of them, or a sample.

    Args:
        documents: the union over both protocols.
        cell: gives the number of documents, and which.
        seed: of the suite.
    """
    if cell.documents >= len(documents):
        return list(documents)
    from evalsuite.tasks.sources.documents import sample_documents

    return sample_documents(documents, cell.documents, seed, cell.sampler)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; build the requests again")
    return read_jsonl(path, appended=False)

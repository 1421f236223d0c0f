"""Score phase: harness metrics turn responses into scores. Needs only the run folder.

Scores are a pure function of documents, responses and scorers: one file per checkpoint, benchmark and
protocol, rewritten if the hash of its inputs differs from the one in its metadata.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from evalsuite.evaluation.build import Harness, load_harness
from evalsuite.evaluation.environment import update_environment
from evalsuite.evaluation.plan import benchmarks_in
from evalsuite.evaluation.processes.workers import WorkerPool
from evalsuite.evaluation.run_paths import (
    Cell,
    batches_of_cells,
    cell_documents,
    cells_of,
    documents_path,
    num_rows,
    open_responses,
    read_documents,
    read_requests,
    requests_path,
)
from evalsuite.evaluation.scorer_versions import scorer_version
from evalsuite.foundation import DataError, canonical_json, file_hash, progress
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.inference.response_cache import Key
from evalsuite.protocols.compat_evalscope import cached_formula_parsing
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.request_set import RequestSet, Score
from evalsuite.protocols.thinking import ThinkingRequest
from evalsuite.reports.records.reading import sound_info
from evalsuite.reports.records.schema import SCHEMA, ScoreRow
from evalsuite.reports.records.score_files import (
    ScoreFileInfo,
    ScorerVersion,
    read_info,
    score_path,
    score_paths,
    write_score_file,
)
from evalsuite.reports.run import Checkpoint, Manifest, read_environment
from evalsuite.tasks.sources.assets import ensure_asset
from evalsuite.tasks.sources.documents import Document

TOKENS_PER_UNIT = 16
"""Generated tokens whose scoring takes about as long as one log-likelihood row."""
MIN_SPLIT_ROWS = 1_000
"""Generation rows from which the workers share a cell."""


def score(
    run: Path,
    manifest: Manifest,
    *,
    pool: WorkerPool | None = None,
    benchmarks: Sequence[Sequence[str]] = (),
    trust_remote_code: bool = False,
    quiet: bool = False,
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> int:
    """Bring the score files of a run up to date with its documents, responses and scorers.

    A file whose inputs are the same is left alone, unless its scorer could not decide some rows (a missing
    dependency, a limit of processor time): these are tried again.

    Args:
        run, manifest: the run folder and its requests.
        pool: its workers share the cells; None scores them in this process.
        benchmarks: names to score, as batches; empty: all.
        trust_remote_code: allow task files that are neither lm-eval's nor ours; they can run Python.
        quiet: no progress bar.
        on_cell: called with every cell when all its checkpoints are scored.

    Returns:
        The number of missing responses; 0 for a complete run.

    Raises:
        ConfigError: a benchmark that is not in the run, or is listed twice.
        DataError: invalid responses, documents or requests.
        MissingDependencyError: an asset that a metric reads is missing.
        RunFolderError: scores cannot be written, or a worker was killed; no file is ever half-written.
    """
    run, pool = Path(run), pool or WorkerPool()
    configs = benchmarks_in(manifest)
    versions = {
        (cell.benchmark, cell.protocol): scorer_version(configs[cell.benchmark], cell.protocol)
        for cell in cells_of(manifest)
    }
    cells = [cell for batch in batches_of_cells(manifest, benchmarks) for cell in batch]
    expected = [cell.documents * len(cell.seeds) * len(manifest.checkpoints) for cell in cells]
    left = [
        max(0, count - _count_current(run, cell, versions[cell.benchmark, cell.protocol]))
        for count, cell in zip(expected, cells, strict=True)
    ]
    _record_versions(run, versions)
    workers = pool.size(sum(left))
    scoring = _Scoring(run, manifest, versions, trust_remote_code, token=uuid4().hex)
    missing = 0
    with progress(total=sum(expected), what="score", unit="doc", quiet=quiet) as bar:
        if workers < 2:
            scorer = _RunScorer(scoring)
            for cell in cells:
                missing += scorer.score_cell(cell, manifest.checkpoints, bar.update)
                on_cell(cell)
            return missing
        tasks = [
            (_weight(cell) * count // shares, _Share(scoring, cell, number, shares))
            for cell, count in zip(cells, left, strict=True)
            for shares in [workers if cell.sampling_params is not None and count >= MIN_SPLIT_ROWS else 1]
            for number in range(shares)
        ]
        # Longest first, for an even finish.
        shared = [share for _, share in sorted(tasks, key=lambda task: -task[0])]
        waiting = Counter((share.cell.benchmark, share.cell.protocol) for share in shared)
        for number, (scored, lacking) in pool.map(_score_share, shared, rows=sum(left)):
            missing += lacking
            bar.update(scored)
            cell = shared[number].cell
            waiting[cell.benchmark, cell.protocol] -= 1
            if not waiting[cell.benchmark, cell.protocol]:
                on_cell(cell)
        return missing


def _weight(cell: Cell) -> int:
    sampling = cell.sampling_params
    if sampling is None:
        return 1
    return 1 + (sampling.max_new_tokens + (sampling.thinking_budget or 0)) // TOKENS_PER_UNIT


Versions = Mapping[tuple[str, str], ScorerVersion]
"""(benchmark, protocol) → version of its scorer."""


def _count_current(run: Path, cell: Cell, version: ScorerVersion) -> int:
    """Return the number of score rows of this version; their inputs may have changed."""
    infos = (read_info(path) for path in score_paths(run, cell.benchmark, cell.protocol))
    return sum(info.rows for info in infos if info is not None and info.scorer == version)


def _record_versions(run: Path, versions: Versions) -> None:
    """Record in `environment.json` what scores the run."""
    scorers: dict[str, dict[str, Any]] = {}
    for (benchmark, protocol), version in versions.items():
        scorers.setdefault(benchmark, {})[protocol] = asdict(version)
    if read_environment(run).get("scorers") != scorers:
        update_environment(run, scorers=scorers)


@dataclass(frozen=True)
class _Scoring:
    """What the shares of one call of `score` have in common."""

    run: Path
    manifest: Manifest
    versions: Versions
    trust_remote_code: bool
    token: str
    """Of the call: a worker keeps its scorer as long as it does not change."""


@dataclass(frozen=True)
class _Share:
    """Every `shares`-th checkpoint of a cell, from checkpoint `number` on."""

    scoring: _Scoring
    cell: Cell
    number: int
    shares: int


_scorer: "_RunScorer | None" = None
"""Scorer of a worker process."""


def _score_share(share: _Share) -> tuple[int, int]:
    """Score one share of a cell's checkpoints; return the number of scored and of missing responses."""
    global _scorer
    if _scorer is None or _scorer.token != share.scoring.token:
        _scorer = _RunScorer(share.scoring)
    counts: list[int] = []
    checkpoints = _scorer.manifest.checkpoints[share.number :: share.shares]
    missing = _scorer.score_cell(share.cell, checkpoints, counts.append)
    return sum(counts), missing


class _RunScorer:
    """Scores the cells of one run; responses are read once for all of them."""

    def __init__(self, scoring: _Scoring) -> None:
        run, manifest = scoring.run, scoring.manifest
        self.run, self.manifest, self.versions = run, manifest, scoring.versions
        self.trust_remote_code, self.token = scoring.trust_remote_code, scoring.token
        self.cache = open_responses(run, manifest)
        self.benchmarks = benchmarks_in(manifest)

    def score_cell(
        self, cell: Cell, checkpoints: Sequence[Checkpoint], advance: Callable[[int], object]
    ) -> int:
        """Bring the score files of one cell up to date, and return the number of missing responses."""
        column = self.benchmarks[cell.benchmark].cluster_column
        documents, missing = _documents(self.run, cell, self.manifest.config["seed"], column), 0
        by_checkpoint = self._samples(cell, checkpoints, documents)
        harness: Harness | None = None
        for checkpoint, samples in zip(checkpoints, by_checkpoint, strict=True):
            expected = num_rows(self.manifest, checkpoint, cell, documents)
            missing += expected - len(samples)
            advance(len(cell.seeds) * len(documents) - expected)  # What it does not read counts as progress.
            fingerprint = self.manifest.fingerprints.get(checkpoint.weights_id, "")
            path = score_path(self.run, cell.benchmark, cell.protocol, fingerprint)
            if not samples:
                if not expected:
                    # Scored before the run was built again with fewer positions.
                    path.unlink(missing_ok=True)
                continue
            inputs = self._hash_inputs(cell, checkpoint, samples)
            info = sound_info(path, clustered=column is not None)
            if info is not None and info.inputs == inputs and not info.undecided:
                advance(len(samples))
                continue
            harness = harness or self._load_harness(cell)
            self._score_file(cell, samples, harness, inputs, advance)
        return missing

    def _samples(
        self, cell: Cell, checkpoints: Sequence[Checkpoint], documents: Sequence[Document]
    ) -> "Iterator[list[_Sample]]":
        """Yield, per checkpoint, the documents of a cell that it reads and whose responses are complete."""
        known: dict[str, list[tuple[RequestSet, list[list[Key]]]]] = {}
        for checkpoint in checkpoints:
            found: list[_Sample] = []
            fingerprint = self.manifest.fingerprints.get(checkpoint.weights_id)
            if fingerprint is None:
                yield found
                continue
            if checkpoint.tokenizer not in known:
                # Hashing a request takes longer than the lookup of its response: once for all checkpoints.
                known[checkpoint.tokenizer] = [
                    (request_set, _keys(cell, request_set))
                    for request_set in read_requests(self.run, checkpoint.tokenizer, cell)
                ]
                if len(documents) != cell.documents:
                    raise DataError(
                        f"{documents_path(self.run, cell.benchmark)}: {len(documents)} documents, expected "
                        f"{cell.documents}; build the requests again"
                    )
                for document, (request_set, _) in zip(documents, known[checkpoint.tokenizer], strict=True):
                    if document.doc_id != request_set.doc_id:
                        raise DataError(
                            f"{documents_path(self.run, cell.benchmark)}: has document {document.doc_id} "
                            f"where the requests have {request_set.doc_id}; build the requests again"
                        )
            limit = self.manifest.limit(checkpoint)
            for number, (request_set, groups) in enumerate(known[checkpoint.tokenizer]):
                for seed, group in zip(cell.seeds, groups, strict=True):
                    if not limit.reads(request_set.context):
                        continue
                    cluster = documents[number].cluster
                    sample = _Sample(checkpoint, fingerprint, cell, number, request_set, seed, cluster, limit)
                    sample.responses = [self.cache.get_by_key(fingerprint, key) for key in group]
                    if all(response is not None for response in sample.responses):
                        found.append(sample)
            yield found

    def _load_harness(self, cell: Cell) -> Harness:
        for asset in self.benchmarks[cell.benchmark].assets:
            ensure_asset(asset, self.manifest.data)
        return load_harness(self.run, self.manifest, cell, trust_remote_code=self.trust_remote_code)

    def _hash_inputs(self, cell: Cell, checkpoint: Checkpoint, samples: "Sequence[_Sample]") -> str:
        """Hash everything that the score rows are derived from."""
        fixed = {
            "schema": SCHEMA,
            "scorer": asdict(self.versions[cell.benchmark, cell.protocol]),
            "benchmark": self.benchmarks[cell.benchmark].model_dump(mode="json"),
            "cell": {name: value for name, value in asdict(cell).items() if name != "sampler"},
            "seed": self.manifest.config["seed"],
            "checkpoint": {name: getattr(checkpoint, name) for name in ("label", "weights_id", "tokenizer")}
            | {"path": ""},
            "documents": file_hash(documents_path(self.run, cell.benchmark)),
            "requests": file_hash(requests_path(self.run, checkpoint.tokenizer, cell)),
        }
        if self.manifest.limit(checkpoint).extension is not None:
            fixed["positions"] = checkpoint.positions
        digest = hashlib.sha256(canonical_json(fixed).encode())
        for sample in samples:
            responses = [response.to_dict() for response in sample.responses]
            digest.update(canonical_json([list(sample.identity.values()), responses]).encode())
        return digest.hexdigest()[:16]

    def _score_file(
        self,
        cell: Cell,
        samples: "Sequence[_Sample]",
        harness: Harness,
        inputs: str,
        advance: Callable[[int], object],
    ) -> None:
        rows: list[ScoreRow] = []
        undecided = 0
        with cached_formula_parsing() if cell.sampling_params is not None else nullcontext():
            for sample in samples:
                found = sample.score(harness)
                undecided += found.undecided
                rows.append(sample.row(found))
                advance(1)
        info = ScoreFileInfo(
            scorer=self.versions[cell.benchmark, cell.protocol],
            inputs=inputs,
            rows=len(rows),
            undecided=undecided,
        )
        write_score_file(self.run, rows, info)


class _Sample:
    """One document with the responses of one checkpoint under one seed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        fingerprint: str,
        cell: Cell,
        number: int,
        request_set: RequestSet,
        seed: int,
        cluster: str | None,
        limit: ContextLimit,
    ) -> None:
        sampling = cell.sampling_params
        self.checkpoint, self.limit = checkpoint, limit
        self.cluster = cluster
        self.number = number
        self.request_set = request_set
        self.request = None if sampling is None else request_set.generate_request(sampling, seed)
        self.responses: list[Any] = []
        self.identity: Mapping[str, Any] = {
            "weights_id": checkpoint.weights_id,
            "fingerprint": fingerprint,
            "benchmark": cell.benchmark,
            "protocol": cell.protocol,
            "seed": seed,
            "context": request_set.context,
            "doc_id": request_set.doc_id,
            "prompt_hash": request_set.prompt_hash,
            "sampling": sampling.key() if sampling is not None else "",
        }

    def row(self, found: Score) -> ScoreRow:
        """Return the score row of a score."""
        return ScoreRow(
            **self.identity,
            checkpoint=self.checkpoint.label,
            values=found.values,
            chance=found.chance,
            outcome=found.outcome,
            error=found.error,
            cluster=self.cluster,
            out_of_distribution=self.limit.is_beyond(self.request_set.tokens_read(self.responses)),
            choices=found.choices,
            detail=found.detail,
            closed_by_force=self._is_forced(),
        )

    def _is_forced(self) -> bool:
        """Whether the thought of the response was closed by force."""
        request = self.request
        return isinstance(request, ThinkingRequest) and request.is_forced(self.responses[0])

    def score(self, harness: Harness) -> Score:
        """Score the responses."""
        if isinstance(harness, LogLikelihoodBenchmark):
            return harness.score(self.number, self.request_set, self.responses)
        (response,) = self.responses
        assert isinstance(response, GenerateResponse)
        return harness.score(self.number, response, in_reasoning=self.request_set.in_reasoning)


def _documents(run: Path, cell: Cell, seed: int, column: str | None) -> list[Document]:
    """Return the documents of a cell.

    Raises:
        DataError: the benchmark names a cluster column, and a document has no cluster.
    """
    documents = read_documents(run, cell.benchmark)
    for number, document in enumerate(documents, 1):
        if column is not None and not document.cluster:
            raise DataError(
                f"{documents_path(run, cell.benchmark)}, line {number}: 'cluster' = {document.cluster!r}, "
                f"but the benchmark names the cluster_column '{column}'; repeat the run with another --out"
            )
    return cell_documents(documents, cell, seed)


def _keys(cell: Cell, request_set: RequestSet) -> list[list[Key]]:
    """Return, per seed, the keys of the requests whose responses are scored together."""
    keys = [request.key() for request in cell.requests(request_set)]
    return [keys] if cell.sampling_params is None else [[key] for key in keys]

"""The manifest of a run folder, `run.json`, and its `environment.json`.

The manifest is fully resolved: together with the score rows it suffices to rebuild a report on a machine that
has neither the models nor the data. This module needs only the standard library: a GPU host without pydantic
reads and writes it. Whoever writes it holds the lock of the folder (see `evalsuite.evaluation.run`); what
other hosts find arrives as shards.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from evalsuite.foundation import DataError, RunFolderError, read_json, write_json
from evalsuite.foundation.context_limits import ContextLimit, context_name
from evalsuite.foundation.machine_paths import last_components
from evalsuite.foundation.taxonomy import Category, Protocol, RecallNumber
from evalsuite.foundation.typed import from_json, to_json

SCHEMA = 4
FILE = "run.json"
REPORT = "report.json"
"""What `compare` writes for other programs."""
EARLIER = ("plan.yaml", "requests/index.json")
"""Files of a run folder that `evalsuite convert` converts."""


@dataclass(frozen=True, kw_only=True)
class ProtocolSettings:
    """Settings of a benchmark under one protocol."""

    metric: str
    """The metric that tables show; further metrics of the score rows go to the score table."""
    documents: int | dict[int, int]
    """Number of documents: one number, or one per context. A cell with fewer is incomplete."""
    direction: Literal["higher", "lower"] = "higher"
    """`higher`: a fraction between 0 and 1. `lower`: negative log-likelihood in nats, a perplexity."""
    units: str | None = None
    """For `lower`: the value that counts the units of a document (words, bytes); None: one per document."""
    num_fewshot: int = 0
    prompt: str = ""
    """Prompt format under generation: `chat template`, `plain text` or `literal`."""
    chat_template_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Further arguments of the chat template, such as ``enable_thinking: false``."""
    reasoning: Literal["strip", "keep"] = "strip"
    """Under generation: whether only what follows a block of reasoning is scored, or whole responses."""
    sampling: str = ""
    """`Sampling.key()`; empty under log-likelihood."""
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        counts = self.documents.values() if isinstance(self.documents, dict) else [self.documents]
        _require(bool(counts) and min(counts) >= 1, "'documents': at least one per benchmark and context")
        _require(self.num_fewshot >= 0, f"'num_fewshot' = {self.num_fewshot}: at least 0")
        _require(bool(self.seeds), "'seeds': at least one")
        _require_distinct("seed", self.seeds)
        _require(
            self.units is None or self.direction == "lower",
            "'units' belong to a metric whose direction is lower",
        )

    @property
    def contexts(self) -> tuple[int | None, ...]:
        """The planned contexts; (None,) for a benchmark without contexts."""
        return tuple(self.documents) if isinstance(self.documents, dict) else (None,)

    @property
    def total(self) -> int:
        """The number of documents over all contexts."""
        return sum(self.documents.values()) if isinstance(self.documents, dict) else self.documents

    def planned(self, context: int | None) -> int:
        """Return the number of documents at a context; 0 if the benchmark does not have the context."""
        if isinstance(self.documents, dict):
            return 0 if context is None else self.documents.get(context, 0)
        return self.documents if context is None else 0


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """The data of a benchmark on the Hugging Face Hub."""

    id: str
    """`organization/name`"""
    config: str | None = None
    """None: the only config, or several."""
    split: str


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark of a run."""

    name: str
    title: str
    category: Category
    license: str = ""
    citation: str = ""
    chance: float | Literal["per_document"] | None = None
    """Score of guessing, as a fraction; `per_document`: each score row has its own; None: unknown."""
    contexts: tuple[int, ...] = ()
    """Stated lengths of needle prompts in tokens; empty if the benchmark has none."""
    group: str | None = None
    """Group of benchmarks that averages count as one and the page shows as one table, such as `longbench`."""
    recall: dict[str, RecallNumber] = field(default_factory=dict)
    """Recall numbers that count it, by name."""
    group_weight: float | None = None
    """Weight in the average of its group; None: each benchmark of it weighs the same."""
    cluster_column: str | None = None
    """Column of the data whose equal values mark documents that are resampled together: every score row
    names its cluster. None: documents are independent."""
    dataset: HubDataset | None = None
    """Where its documents come from; None: generated, of several datasets, of a file, or not stated."""
    files_hash: str = ""
    """SHA-256 of the file that its documents come from; empty if they come from elsewhere."""
    not_leading: str = ""
    """Why it counts in no average that ranks; empty if it does."""
    protocols: dict[Protocol, ProtocolSettings]

    def __post_init__(self) -> None:
        _require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", self.name) is not None,
            f"'name' = {self.name!r}: letters, digits and _.+- only",
        )
        known = self.chance is None or isinstance(self.chance, str)
        _require(known or 0 <= float(self.chance or 0) < 1, "'chance': a fraction, at least 0 and below 1")
        _require(self.group_weight is None or self.group_weight > 0, "'group_weight': above 0")
        _require(bool(self.protocols), "'protocols': at least one")
        for name, protocol in self.protocols.items():
            unknown = sorted(set(protocol.contexts) - set(self.contexts or (None,)), key=str)
            _require(
                not unknown,
                f"'documents' of {name} counts context {unknown[:1]}, 'contexts' is {list(self.contexts)}",
            )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run."""

    label: str
    weights_id: str
    role: Literal["teacher", "student"] = "student"
    path: str = ""
    """As given by the user."""
    parameters: int | None = None
    positions: int | None = None
    """Positions that its config states; longer texts are not read, or out of distribution. None: unknown."""
    tokenizer: str = ""
    """Folder of its requests; checkpoints with equal tokenizers share it. Empty: there are no requests."""
    lineage: dict[str, Any] = field(default_factory=dict)
    """Content of `lineage.json` in the checkpoint's folder; see `evalsuite.reports.analysis.lineage`."""
    fingerprints: tuple[str, ...] = ()
    """Of published samples: those of its score rows, where the same weights are several checkpoints, or where
    several were declared one. Empty: all score rows of the weights."""
    compared_with: str = ""
    """Of published samples: label of its teacher, where the teacher's weights are several checkpoints."""

    def __post_init__(self) -> None:
        _require(bool(self.label), "'label' is empty")
        _require(bool(self.weights_id), "'weights_id' is empty")
        _require(self.parameters is None or self.parameters >= 0, f"'parameters' = {self.parameters}")
        _require(self.positions is None or self.positions >= 1, f"'positions' = {self.positions}")

    @property
    def stated(self) -> "Checkpoint":
        """What a manifest states of it, without what subclasses add."""
        return Checkpoint(**{each.name: getattr(self, each.name) for each in fields(Checkpoint)})

    def portable(self) -> Self:
        """The same, with paths of this machine reduced to their last component."""
        return replace(self, path=last_components(self.path), lineage=last_components(self.lineage))


@dataclass(frozen=True, kw_only=True)
class DivergedStudent:
    """A student that diverged in training, and therefore has no checkpoint and no scores."""

    label: str
    path: str = ""
    """Folder that its checkpoint would be in; empty: not stated."""
    stage: str
    step: int
    """Of the stage, from 0."""
    tokens: int
    """That its training run had trained on."""
    reason: str
    """What its loss did."""

    def __post_init__(self) -> None:
        _require(bool(self.label), "'label' is empty")
        _require(self.step >= 0, f"'step' = {self.step}: at least 0")
        _require(self.tokens >= 0, f"'tokens' = {self.tokens}: at least 0")

    @property
    def why(self) -> str:
        """Such as ``diverged in training (stage 'kd', step 12, after 53,248 tokens: the loss is nan)``."""
        place = f"stage '{self.stage}', step {self.step:,}, after {self.tokens:,} tokens"
        return f"diverged in training ({place}: {self.reason})"

    def portable(self) -> "DivergedStudent":
        """As `Checkpoint.portable`."""
        return replace(self, path=last_components(self.path))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computed the responses of a checkpoint."""

    engine: str
    fingerprint: str
    """Names its response logs."""
    max_length: int
    """Longest prompt that it reads, in tokens."""
    versions: dict[str, Any] = field(default_factory=dict)
    """What the fingerprint covers: device, dtype and packages."""
    batch_limits: dict[str, Any] | None = None
    """Of the first call, so that responses do not depend on the memory that is free when a run is resumed."""
    notice: str | None = None
    """What to know about it, such as why it is a slower one."""

    def __post_init__(self) -> None:
        _require(
            re.fullmatch(r"[A-Za-z0-9_-]{1,128}", self.fingerprint) is not None,
            f"'fingerprint' = {self.fingerprint!r}: letters, digits, _ and - only",
        )
        _require(self.max_length >= 0, f"'max_length' = {self.max_length}: at least 0")


def still_diverged(
    notes: Iterable[DivergedStudent],
    checkpoints: Sequence[Checkpoint],
    elsewhere: Sequence[Checkpoint] = (),
) -> tuple[DivergedStudent, ...]:
    """Return the last note on each student that was not trained again, in the same folder.

    Where a note does not state the folder, a checkpoint of the run has its label.

    Args:
        notes: of one run.
        checkpoints: of that run.
        elsewhere: of other runs.
    """
    last = {each.path or each.label: each for each in notes}
    return tuple(
        note
        for note in last.values()
        if not any(same_path(note.path, each.path) for each in (*checkpoints, *elsewhere))
        and (note.path or all(note.label != each.label for each in checkpoints))
    )


def same_path(one: str, other: str) -> bool:
    """Whether two paths lead to one place; no path leads nowhere."""
    return bool(one and other) and place(one) == place(other)


def place(path: str) -> str:
    """Return a path in a form that equal places share; empty for no path."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


@dataclass(frozen=True, kw_only=True)
class UnplannedCells:
    """Cells of a merged manifest that no run of these checkpoints has."""

    benchmark: str
    protocol: Protocol
    contexts: tuple[int | None, ...]
    """[null] for a benchmark without contexts."""
    checkpoints: tuple[str, ...]
    """Labels."""

    def __post_init__(self) -> None:
        _require(bool(self.contexts), "'contexts': at least one")
        _require(bool(self.checkpoints), "'checkpoints': at least one")


IMPORTED = "imported from "
"""Start of the suite of a run folder that was written from a log; the harness follows."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`run.json`: benchmarks, checkpoints, and everything else that the phases and the reports share."""

    suite: str
    created: str
    """ISO 8601, UTC."""
    benchmarks: tuple[Benchmark, ...]
    checkpoints: tuple[Checkpoint, ...]
    """The teacher first."""
    max_length: int | None = None
    """Positions that checkpoints are extended to where their configs state fewer; None: they are not."""
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved suite: runs with equal ones have equal requests. Empty for imported logs and published
    samples, which have none."""
    data: str | None = None
    """Where the documents come from; None for imported logs and published samples."""
    documents: dict[str, str] = field(default_factory=dict)
    """Benchmark → hash of its documents, equal for runs on the same ones."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Benchmarks of the suite, or single contexts of them (``niah_single_1@16384``), left out → why."""
    partial: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Benchmarks with incomplete data → documents available, documents published."""
    engines: dict[str, Engine] = field(default_factory=dict)
    """weights_id → what computed its responses."""
    diverged: tuple[DivergedStudent, ...] = ()
    """Students that were to be evaluated and have no checkpoint."""
    unplanned: tuple[UnplannedCells, ...] = ()
    """Of published samples, whose runs may have planned other benchmarks for each checkpoint."""

    def __post_init__(self) -> None:
        _require(bool(self.benchmarks), "'benchmarks': at least one")
        _require(bool(self.checkpoints), "'checkpoints': at least one")
        _require(self.max_length is None or self.max_length >= 1, f"'max_length' = {self.max_length}")
        identities = [
            (each.weights_id, name) for each in self.checkpoints for name in each.fingerprints or ("",)
        ]
        whole = {weights for weights, name in identities if not name}
        _require_distinct("benchmark", [each.name for each in self.benchmarks])
        _require_distinct(
            "weights_id", [each.weights_id for each in self.checkpoints if each.weights_id in whole]
        )
        _require_distinct("fingerprint", [f"{name} of {weights}" for weights, name in identities if name])
        _require_distinct("label", [each.label for each in self.checkpoints])

    @property
    def harness(self) -> str | None:
        """The harness whose log this was; None for a run of evalsuite."""
        return self.suite.removeprefix(IMPORTED) if self.suite.startswith(IMPORTED) else None

    @property
    def labels(self) -> dict[str, str]:
        """weights_id → label."""
        return {each.weights_id: each.label for each in self.checkpoints}

    @property
    def fingerprints(self) -> dict[str, str]:
        """weights_id → fingerprint under which its responses are stored."""
        return {weights_id: engine.fingerprint for weights_id, engine in self.engines.items()}

    @property
    def unread(self) -> dict[str, dict[str, str]]:
        """Label → contexts that the checkpoint is not evaluated on, and why; without empty ones."""
        found = {
            each.label: {
                context_name(benchmark.name, context): limit.reason
                for benchmark in self.benchmarks
                for context in benchmark.contexts
                if not limit.reads(context)
            }
            for each in self.checkpoints
            for limit in [self.limit(each)]
        }
        return {label: contexts for label, contexts in found.items() if contexts}

    @property
    def seeds(self) -> dict[str, Any]:
        """Seeds of document samples and, by benchmark, of sampled responses; empty without a suite."""
        sampled = {
            entry["benchmark"]["name"]: list(entry["seeds"])
            for entry in self.config.get("entries", ())
            if entry["sampling"] is not None and entry["sampling"]["temperature"] > 0
        }
        return {"documents": self.config["seed"], "responses": sampled} if self.config else {}

    def limit(self, checkpoint: Checkpoint) -> ContextLimit:
        """Return which contexts a checkpoint reads in this run."""
        return ContextLimit(checkpoint.positions, self.max_length)

    def has(self, checkpoint: Checkpoint, benchmark: str, protocol: str, context: int | None) -> bool:
        """Whether a cell of the run is planned for a checkpoint."""
        return not any(
            (benchmark, protocol) == (cells.benchmark, cells.protocol)
            and context in cells.contexts
            and checkpoint.label in cells.checkpoints
            for cells in self.unplanned
        )

    def checkpoint(self, weights_id: str, fingerprint: str) -> Checkpoint | None:
        """Return the checkpoint of a score row; None for a row of another run."""
        for each in self.checkpoints:
            if each.weights_id == weights_id and (not each.fingerprints or fingerprint in each.fingerprints):
                return each
        return None

    def cells(self) -> list[tuple[Benchmark, str]]:
        """List every benchmark under each of its protocols."""
        return [(benchmark, protocol) for benchmark in self.benchmarks for protocol in benchmark.protocols]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_distinct(what: str, names: Sequence[Any]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    _require(not repeated, f"{what} '{next(iter(repeated), '')}' is listed twice")


def manifest_path(run: Path) -> Path:
    """Return the path of a run's manifest."""
    return Path(run) / FILE


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run, of an earlier version perhaps, which `read_manifest` refuses by name."""
    return any((Path(path) / name).is_file() for name in (FILE, *EARLIER))


def report_file(path: Path) -> Path | None:
    """The report.json of a folder that `compare` wrote, or the file itself; None for anything else."""
    if path.is_file():
        return path if path.name == REPORT else None
    return path / REPORT if (path / REPORT).is_file() and not is_run_folder(path) else None


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write `<run>/run.json`, atomically. Raises RunFolderError if the folder cannot be written."""
    write_json(manifest_path(run), manifest_json(manifest))


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """Return the content of a `run.json`."""
    return {"schema": SCHEMA, **to_json(manifest)}


def read_manifest(run: Path) -> Manifest:
    """Read `<run>/run.json`.

    Raises:
        RunFolderError: `run` is not a run folder, or one of another version.
        DataError: the file is damaged, or has unknown or missing keys.
    """
    path = manifest_path(run)
    if not path.is_file():
        if is_run_folder(run):
            raise RunFolderError(
                f"{run}: a run folder of an earlier version ({EARLIER[0]}); convert it with "
                f"`evalsuite convert {run}`"
            )
        raise RunFolderError(f"{run}: not a run folder (it has no {FILE})")
    try:
        value = read_json(path)
    except DataError as error:
        raise DataError(f"{error}; {_WAY_OUT}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected an object, found {type(value).__name__}; {_WAY_OUT}")
    return parse_manifest(value, str(path))


def parse_manifest(value: dict[str, Any], source: str) -> Manifest:
    """Return the manifest of a `run.json`'s content; `source` names the file. Raises as `read_manifest`."""
    value = dict(value)
    schema = value.pop("schema", None)
    if type(schema) is not int or schema != SCHEMA:
        raise RunFolderError(
            f"{source}: 'schema' = {schema!r}; this evalsuite reads {SCHEMA}: use the version that wrote it, "
            "or copy responses/ into a new run folder and repeat the evaluation there; only what is missing "
            "is computed"
        )
    return from_json(value, Manifest, source)


_WAY_OUT = (
    "copy the file again, or remove it and repeat `evalsuite run` with the same options; responses are kept"
)


def environment_path(run: Path) -> Path:
    """Return the path of a run's `environment.json`."""
    return Path(run) / "environment.json"


def write_environment(run: Path, environment: dict[str, Any]) -> None:
    """Write `<run>/environment.json`: versions, hardware, git state, configurations, wall times."""
    write_json(environment_path(run), environment)


def read_environment(run: Path) -> dict[str, Any]:
    """Read `<run>/environment.json`; empty if the run has none yet. Raises DataError if it is no object."""
    path = environment_path(run)
    value = read_json(path) if path.is_file() else {}
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected an object, found {type(value).__name__}")
    return value


def read_facts(run: Path) -> dict[str, Any]:
    """Return what explains a run's numbers: its environment, with engines, seeds and data of its manifest.

    Raises:
        RunFolderError, DataError: as `read_manifest` and `read_environment`.
    """
    manifest = read_manifest(run)
    names = ("data", "documents", "seeds", "left_out", "partial", "engines", "unread")
    stated = {name: to_json(getattr(manifest, name)) for name in names}
    return read_environment(run) | {name: value for name, value in stated.items() if value not in ({}, None)}

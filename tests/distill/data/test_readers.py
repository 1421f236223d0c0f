"""Readers of local files and of the hub: resumption, changes, and how much of a file they read."""

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from evalsuite.distill.data import side_by_side
from evalsuite.distill.data.chunks import Reader
from evalsuite.distill.data.preparation import Preparation
from evalsuite.distill.data.readers import open_reader
from evalsuite.distill.recipe.data_sources import DataSourceConfig
from evalsuite.foundation import DataError

NUM_ROWS = 400
CHUNK_ROWS = 7


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "CHUNK_ROWS", CHUNK_ROWS)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset folder of 40 rows in two shards, which `datasets` streams without a network."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for shard in range(2):
        rows = [json.dumps({"text": f"document {20 * shard + number:02}"}) for number in range(20)]
        (folder / f"train-{shard:05}-of-00002.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def texts() -> list[str]:
    return [f"document {number:03} " + "words " * (number % 7) for number in range(NUM_ROWS)]


def hub_reader(dataset: Path | str, **changes: Any) -> Reader:
    return open_reader(
        DataSourceConfig.model_validate({"kind": "hub", "dataset": str(dataset), **changes}), "hub"
    )


def local_reader(*paths: Path, **changes: Any) -> Reader:
    source = {"kind": "local", "files": list(map(str, paths)), **changes}
    return open_reader(DataSourceConfig.model_validate(source), "local")


class Plain:
    """Stands in for a tokenizer: rows are parsed here, not tokenized."""

    backend_tokenizer, bos_token_id, eos_token, eos_token_id = None, None, "<|end|>", 0


def read(reader: Reader, position: dict[str, Any] | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Texts from a position to the end, each with the position of the next row, as JSON would return it."""
    source = DataSourceConfig.model_validate({"kind": "local", "files": ["unused"]})
    preparation = Preparation({"name": source}, Plain)
    return [
        (example.text, json.loads(json.dumps(chunk.position_after(number))))
        for chunk in reader.chunks(reader.start() if position is None else position)
        for number, example in enumerate(preparation.parse("name", chunk), 1)
        if example is not None
    ]


def texts_of(reader: Reader, position: dict[str, Any] | None = None) -> list[str]:
    return [text for text, _ in read(reader, position)]


DOCUMENTS = [
    f"document {20 * shard + number:02}"
    for first in range(0, 20, CHUNK_ROWS)
    for shard in range(2)
    for number in range(first, min(20, first + CHUNK_ROWS))
]
"""In the order in which two files of equal size are read."""


def test_a_stream_is_read_in_order_and_starts_over(dataset):
    reader = hub_reader(dataset)
    assert texts_of(reader) == DOCUMENTS
    assert texts_of(reader) == DOCUMENTS


def test_a_stream_resumes_at_every_row(dataset):
    for number, (_, position) in enumerate(read(hub_reader(dataset)), 1):
        assert texts_of(hub_reader(dataset), position) == DOCUMENTS[number:]


def test_the_epoch_after_a_resumed_one_starts_at_the_first_document(dataset):
    position = read(hub_reader(dataset))[16][1]
    resumed = hub_reader(dataset)
    assert texts_of(resumed, position) == DOCUMENTS[17:]
    assert texts_of(resumed) == DOCUMENTS


def test_a_resumed_stream_can_be_saved_and_resumed_again(dataset):
    first = read(hub_reader(dataset))[9][1]
    again = read(hub_reader(dataset), first)[12][1]
    assert texts_of(hub_reader(dataset), again) == DOCUMENTS[23:]


def test_a_missing_dataset_names_the_source(tmp_path):
    with pytest.raises(DataError, match=r"data source 'hub': .*nowhere cannot be opened"):
        texts_of(hub_reader(tmp_path / "nowhere"))


def test_a_run_keeps_the_commit_that_a_dataset_had_at_its_start(dataset, monkeypatch):
    import datasets
    import huggingface_hub

    commit, opened, load = "first", [], datasets.load_dataset_builder

    class Hub:
        def dataset_info(self, name: str) -> Any:
            return type("Info", (), {"sha": commit})

    def load_dataset_builder(name: str, *args: Any, revision: str, **options: Any) -> Any:
        opened.append((name, revision))
        return load(str(dataset), *args, **options)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    position = read(hub_reader("org/name"))[11][1]
    commit = "second"
    assert texts_of(hub_reader("org/name"), position) == DOCUMENTS[12:]
    assert texts_of(hub_reader("org/name", revision="pinned")) == DOCUMENTS
    assert opened == [("org/name", "first"), ("org/name", "first"), ("org/name", "pinned")]


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch):
    import huggingface_hub

    class UnreachableError(Exception):
        """As httpx.ConnectError, which is no OSError."""

    class Hub:
        def dataset_info(self, name: str) -> Any:
            raise UnreachableError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    with pytest.raises(DataError, match=r"data source 'hub': org/name cannot be opened \(Name or service"):
        texts_of(hub_reader("org/name"))


def write_lines(path: Path, texts: list[str]) -> None:
    content = "".join(json.dumps({"text": text, "unused": [text] * 3}) + "\n" for text in texts).encode()
    compression = "zstd" if path.suffix == ".zst" else None
    with pyarrow.output_stream(str(path), compression=compression) as file:
        file.write(content)


def write_parquet(path: Path, texts: list[str]) -> None:
    table = pyarrow.table({"text": texts, "unused": [[text] * 3 for text in texts]})
    pyarrow.parquet.write_table(table, path, row_group_size=150)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst", "rows.parquet"])
def test_local_files_resume_at_every_row(tmp_path, texts, name):
    path, more = tmp_path / name, tmp_path / f"more-{name}"
    write = write_parquet if name.endswith("parquet") else write_lines
    write(path, texts[:300])
    write(more, texts[300:])
    rows = read(local_reader(path, more))
    order = [text for text, _ in rows]
    assert sorted(order) == sorted(texts)
    assert [text for text in order if text in texts[:300]] == texts[:300]
    for number in range(1, NUM_ROWS + 1, 1 if name.endswith("parquet") else 13):
        assert texts_of(local_reader(path, more), rows[number - 1][1]) == order[number:]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst"])
def test_json_lines_are_read_once_per_epoch(tmp_path, texts, name, monkeypatch):
    path = tmp_path / name
    write_lines(path, texts)
    num_bytes = sum(len(json.dumps({"text": text, "unused": [text] * 3})) + 1 for text in texts)
    found, opened = [], pyarrow.input_stream

    class Counted(io.RawIOBase):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            block = self._stream.read(len(buffer))
            found.append(block)
            buffer[: len(block)] = block
            return len(block)

    monkeypatch.setattr(pyarrow, "input_stream", lambda *args, **options: Counted(opened(*args, **options)))
    assert texts_of(local_reader(path)) == texts
    assert sum(map(len, found)) == num_bytes


def test_row_groups_of_parquet_files_are_decoded_once_per_epoch(tmp_path, texts, monkeypatch):
    path = tmp_path / "rows.parquet"
    write_parquet(path, texts)
    decoded: Counter[int] = Counter()
    columns = set()

    class Counted(pyarrow.parquet.ParquetFile):
        def read_row_group(self, i: int, columns: Any = None, **options: Any) -> Any:
            self._count([i], columns)
            return super().read_row_group(i, columns=columns, **options)

        def iter_batches(self, *args: Any, row_groups: Any, columns: Any = None, **options: Any) -> Any:
            self._count(row_groups, columns)
            return super().iter_batches(*args, row_groups=row_groups, columns=columns, **options)

        def _count(self, groups: Any, names: Any) -> None:
            decoded.update(groups)
            columns.update(self.schema_arrow.names if names is None else names)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counted)
    assert texts_of(local_reader(path)) == texts
    assert decoded == {0: 1, 1: 1, 2: 1}
    assert columns == {"text"}


def test_a_missing_parquet_column_suggests_the_nearest(tmp_path, texts):
    path = tmp_path / "rows.parquet"
    write_parquet(path, texts)
    reader = local_reader(path, text="texts")
    source = DataSourceConfig.model_validate({"kind": "local", "files": [str(path)], "text": "texts"})
    chunk = next(reader.chunks(reader.start()))
    with pytest.raises(DataError, match=r"there is no column 'texts'.*'text'"):
        Preparation({"local": source}, Plain).parse("local", chunk)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{not json", r"data source 'name': .*rows\.jsonl, row 9: cannot"), ("[1]", "list, not an object")],
)
def test_a_damaged_line_is_named(tmp_path, texts, line, message):
    path = tmp_path / "rows.jsonl"
    write_lines(path, texts[:8])
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        read(local_reader(path))


def test_a_file_that_changed_since_the_state_was_saved_is_refused(tmp_path, texts):
    path, other = tmp_path / "rows.jsonl", tmp_path / "others.jsonl"
    write_lines(path, texts)
    write_lines(other, texts[:10])
    position = read(local_reader(path, other))[30][1]
    write_lines(other, [*texts[:9], texts[9].replace("words", "wards")])
    with pytest.raises(DataError, match=r"others\.jsonl is not what the training state was saved with"):
        read(local_reader(path, other), position)
    with pytest.raises(DataError, match=r"1 files match, but the training state was saved with 2"):
        read(local_reader(path), position)
    write_lines(other, texts[:10])
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for each in (path, other):
        each.rename(moved / each.name)
    assert len(read(local_reader(moved / path.name, moved / other.name), position)) == NUM_ROWS + 10 - 31

"""Readers of local files and of the hub: resumption, epochs, and how much of a file they read."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from evalsuite.distill.data.config import DataSourceConfig
from evalsuite.distill.data.sources import Reader, open_reader
from evalsuite.foundation import DataError

NUM_ROWS = 400
SHARD_SIZE = 16


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset folder of 40 rows in two shards, which `datasets` streams without a network."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for shard in range(2):
        rows = [json.dumps({"text": f"document {20 * shard + number:02}"}) for number in range(20)]
        (folder / f"train-{shard:05}-of-00002.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def hub_reader(dataset: Path, **changes: Any) -> Reader:
    source = {"kind": "hub", "dataset": str(dataset), "shuffle_buffer_size": 8, **changes}
    return open_reader(DataSourceConfig.model_validate(source), "hub")


def numbers(reader: Reader, position: dict[str, Any] | None) -> tuple[list[list[int]], list[Any]]:
    """Document numbers of every shard from a position to the end, and the position after each shard."""
    shards, positions = [], []
    while position is not None:
        examples, position = reader.read_shard(position)
        shards.append([int(example.text.split()[-1]) for example in examples])
        positions.append(position)
    return shards, positions


def test_a_stream_is_read_in_order_and_starts_over(dataset):
    reader = hub_reader(dataset)
    first, _ = numbers(reader, {})
    assert [number for shard in first for number in shard] == list(range(40))
    assert numbers(reader, {})[0] == first


def test_a_stream_resumes_at_every_position(dataset):
    shards, positions = numbers(hub_reader(dataset), {})
    for number, position in enumerate(positions[:-1]):
        saved = json.loads(json.dumps(position))
        assert numbers(hub_reader(dataset), saved)[0] == shards[number + 1 :]


def test_the_epoch_after_a_resumed_one_starts_at_the_first_document(dataset):
    shards, positions = numbers(hub_reader(dataset), {})
    resumed = hub_reader(dataset)
    assert numbers(resumed, positions[1])[0] == shards[2:]
    assert numbers(resumed, {})[0] == shards


def test_a_resumed_stream_can_be_saved_and_resumed_again(dataset):
    shards, positions = numbers(hub_reader(dataset), {})
    _, again = numbers(hub_reader(dataset), positions[0])
    assert numbers(hub_reader(dataset), again[0])[0] == shards[2:]


def test_a_position_that_was_already_read_is_read_again(dataset):
    reader = hub_reader(dataset)
    shards, positions = numbers(reader, {})
    assert numbers(reader, positions[0])[0] == shards[1:]


def test_a_missing_dataset_names_the_source(tmp_path):
    with pytest.raises(DataError, match=r"data source 'hub': .*nowhere cannot be opened"):
        hub_reader(tmp_path / "nowhere").read_shard({})


@pytest.fixture
def texts() -> list[str]:
    return [f"document {number:03} " + "words " * (number % 7) for number in range(NUM_ROWS)]


def local_reader(path: Path, **changes: Any) -> Reader:
    source = {"kind": "local", "files": [str(path)], "shuffle_buffer_size": SHARD_SIZE, **changes}
    return open_reader(DataSourceConfig.model_validate(source), "local")


def write_lines(path: Path, texts: list[str]) -> None:
    content = "".join(json.dumps({"text": text, "unused": [text] * 3}) + "\n" for text in texts).encode()
    compression = "zstd" if path.suffix == ".zst" else None
    with pyarrow.output_stream(str(path), compression=compression) as file:
        file.write(content)


def write_parquet(path: Path, texts: list[str]) -> None:
    table = pyarrow.table({"text": texts, "unused": [[text] * 3 for text in texts]})
    pyarrow.parquet.write_table(table, path, row_group_size=150)


def read_all(reader: Reader, position: dict[str, Any] | None) -> tuple[list[str], list[Any]]:
    found, positions = [], []
    while position is not None:
        examples, position = reader.read_shard(position)
        found += [example.text for example in examples]
        positions.append(position)
    return found, positions


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst", "rows.parquet"])
def test_local_files_resume_at_every_position(tmp_path, texts, name):
    path = tmp_path / name
    (write_parquet if name.endswith("parquet") else write_lines)(path, texts)
    found, positions = read_all(local_reader(path), {})
    assert found == texts
    for number, position in enumerate(positions[:-1]):
        saved = json.loads(json.dumps(position))
        assert read_all(local_reader(path), saved)[0] == texts[(number + 1) * SHARD_SIZE :]
    reader = local_reader(path)
    assert read_all(reader, positions[3])[0] == texts[4 * SHARD_SIZE :]
    assert read_all(reader, {})[0] == texts


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst"])
def test_json_lines_are_read_once_per_epoch(tmp_path, texts, name, monkeypatch):
    path = tmp_path / name
    write_lines(path, texts)
    num_bytes = sum(len(json.dumps({"text": text, "unused": [text] * 3})) + 1 for text in texts)
    read, opened = [], pyarrow.input_stream

    class Counted:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __enter__(self) -> "Counted":
            return self

        def __exit__(self, *_: object) -> None:
            self._stream.close()

        def read(self, size: int) -> bytes:
            read.append(self._stream.read(size))
            return read[-1]

    monkeypatch.setattr(pyarrow, "input_stream", lambda *args, **options: Counted(opened(*args, **options)))
    assert read_all(local_reader(path), {})[0] == texts
    assert sum(map(len, read)) == num_bytes


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
    assert read_all(local_reader(path), {})[0] == texts
    assert decoded == {0: 1, 1: 1, 2: 1}
    assert columns == {"text"}


def test_a_missing_parquet_column_suggests_the_nearest(tmp_path, texts):
    path = tmp_path / "rows.parquet"
    write_parquet(path, texts)
    with pytest.raises(DataError, match=r"there is no column 'texts'.*'text'"):
        local_reader(path, text="texts").read_shard({})

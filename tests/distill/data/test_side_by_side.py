"""Files of a source are mixed: each has its share of the rows in every part of an epoch."""

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from evalsuite.distill.data import side_by_side
from evalsuite.distill.data.chunks import Reader
from evalsuite.distill.data.readers import open_reader
from evalsuite.distill.recipe.data_sources import DataSourceConfig
from evalsuite.foundation import DataError

COUNTS = {"code": 12_000, "math": 6_000, "science": 2_000}


def rows_of(kind: str, count: int) -> list[dict[str, str]]:
    """Rows of lengths that differ within and between files; code compresses far better."""
    source = random.Random(kind)
    words = ["return", "self", "value"] if kind == "code" else [f"{source.random():.9f}" for _ in range(500)]
    return [
        {"text": f"{kind} " + " ".join(source.choices(words, k=source.randint(2, 30)))} for _ in range(count)
    ]


def write(path: Path, rows: list[dict[str, str]]) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1500)
        return
    compression = "zstd" if path.suffix == ".zst" else None
    with pyarrow.output_stream(str(path), compression=compression) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def kinds(reader: Reader) -> list[str]:
    found = []
    for chunk in reader.chunks(reader.start()):
        rows = chunk.rows.to_pylist() if hasattr(chunk.rows, "to_pylist") else chunk.rows
        found += [(json.loads(row) if isinstance(row, bytes) else row)["text"].split()[0] for row in rows]
    return found


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("local", "jsonl"), ("local", "jsonl.zst"), ("local", "parquet"), ("hub", "jsonl"), ("hub", "parquet")],
)
def test_every_tenth_of_an_epoch_has_the_shares_of_the_whole(tmp_path, kind, suffix, monkeypatch):
    monkeypatch.setattr(side_by_side, "CHUNK_ROWS", 16)
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name, count in COUNTS.items():
        write(folder / f"{name}.{suffix}", rows_of(name, count))
    source = {"local": {"files": [f"{folder}/*"]}, "hub": {"dataset": str(folder)}}[kind]
    found = kinds(open_reader(DataSourceConfig.model_validate({"kind": kind, **source}), "mixed"))
    assert Counter(found) == COUNTS
    tenth = len(found) // 10
    for first in range(0, len(found), tenth):
        part = Counter(found[first : first + tenth])
        for name, count in COUNTS.items():
            assert abs(part[name] / tenth - count / len(found)) <= 0.02, (first, name)


def test_many_files_are_read_in_groups_in_an_order_of_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "WAYS", 3)
    for number in range(8):
        write(tmp_path / f"{number}.jsonl", [{"text": f"{number} row"}] * 300)

    def order(seed: int) -> list[str]:
        source = {"kind": "local", "files": [f"{tmp_path}/*"], "seed": seed}
        return kinds(open_reader(DataSourceConfig.model_validate(source), "many"))

    first, second = order(0), order(1)
    assert Counter(first) == Counter(second) == {str(number): 300 for number in range(8)}
    assert order(0) == first != second
    groups = [first[start : start + 900] for start in (0, 900, 1800)]
    assert [len(set(group)) for group in groups] == [3, 3, 2]
    assert [set(group[:768]) for group in groups[:2]] == [set(group) for group in groups[:2]]
    assert groups[0][:768] != sorted(groups[0][:768]) or sorted(set(groups[0])) != ["0", "1", "2"]


@pytest.mark.parametrize(
    ("kind", "old"), [("local", {"file": 0, "row": 5}), ("hub", {"row": 5, "stream": {}})]
)
def test_a_state_of_files_that_were_read_one_by_one_is_refused(tmp_path, kind, old):
    write(tmp_path / "a.jsonl", rows_of("math", 10))
    source = {"local": {"files": [f"{tmp_path}/*"]}, "hub": {"dataset": str(tmp_path)}}[kind]
    reader = open_reader(DataSourceConfig.model_validate({"kind": kind, **source}), "mixed")
    files = {"files": reader.start()["files"]} if kind == "local" else {}
    with pytest.raises(
        DataError, match="'mixed': the training state was saved by a version that read files one"
    ):
        next(reader.chunks({**old, **files}))

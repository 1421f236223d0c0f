"""Sized documents over data: frozen once, read from there, and asked as far as there is data."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.documents import documents
from evalsuite.tasks.freeze import freeze

Read = dict[str, list[list[dict[str, Any]]]]


def words(text: str) -> int:
    return len(text.split())


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path = folder / f"{name}.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def asked(name: str, folder: Path, limit: int, context: int) -> list[Any]:
    return documents(load_benchmark(name), data_dir=folder, limit=limit, context=context, count_tokens=words)


def test_what_a_generator_reads_is_frozen(tmp_path: Path, read: Read) -> None:
    # The essays have no organisation in some folders, as where they were first collected.
    write(tmp_path, "source/paulgraham_essays/default/train", read["niah_single_2"][0])
    write(tmp_path, "source/rajpurkar__squad/plain_text/validation", read["qa_1"][0])
    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nbenchmarks: [niah_single_2, niah_single_1, ruler_qa_1]\n")
    freeze(suite, tmp_path / "frozen", source=tmp_path / "source", quiet=True)
    there = {
        path.relative_to(tmp_path / "frozen").as_posix() for path in tmp_path.glob("frozen/**/*.parquet")
    }
    assert there == {
        "baber__paul_graham_essays/default/train.parquet",
        "rajpurkar__squad/plain_text/validation.parquet",
    }
    for name in ("niah_single_2", "niah_single_1", "ruler_qa_1"):
        found = asked(name, tmp_path / "frozen", 3, 512)
        assert found == asked(name, tmp_path / "source", 3, 512)
        assert len(found) == 3
        assert {document.context for document in found} == {512}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"baber__paul_graham_essays/default/train.parquet: no such file"):
        asked("niah_single_2", tmp_path / "empty", 1, 512)


def test_questions_are_asked_as_far_as_they_go(tmp_path: Path, read: Read) -> None:
    few = read["qa_2"][0][:12]
    # One of them is longer than the context: it is left out, the others are asked.
    few[3] = few[3] | {"context": {"title": ["long"], "sentences": [["word " * 300]]}}
    write(tmp_path, "hotpotqa__hotpot_qa/distractor/validation", few)
    found = asked("ruler_qa_2", tmp_path, 500, 260)
    assert len(found) == 11
    assert found[:4] == asked("ruler_qa_2", tmp_path, 4, 260)


def test_published_pairs_are_asked_in_their_order(tmp_path: Path) -> None:
    records = [[f"key {number}", f'va"lue {number}'] for number in range(4)]
    row = {"ordered_kv_records": records, "key": "key 2", "value": 'va"lue 2'}
    write(tmp_path, "nelson-liu__lost-in-the-middle/kv-retrieval-75_keys/test", [row])
    (document,) = documents(load_benchmark("kv_retrieval_75"), data_dir=tmp_path)
    assert document.row == {
        "prompt": "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        'JSON data:\n{"key 0": "va\\"lue 0",\n "key 1": "va\\"lue 1",\n "key 2": "va\\"lue 2",\n '
        '"key 3": "va\\"lue 3"}\n\nKey: "key 2"\nCorresponding value:',
        "answers": ['va"lue 2'],
        "position": 2,
    }


def test_a_template_is_for_rows_of_ours() -> None:
    benchmark = load_benchmark("gsm8k").model_dump()
    benchmark["generation"]["template"] = "{{ question }}"
    with pytest.raises(ValueError, match="'template' belongs to dataset 'evalsuite'"):
        Benchmark.model_validate(benchmark)
    with pytest.raises(ConfigError, match="did you mean 'niah_single_1'"):
        load_benchmark("niah_singel_1")

"""RULER documents from input data: freezing, limits and published pairs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.sources.documents import documents
from evalsuite.tasks.sources.freeze import freeze

Inputs = dict[str, list[list[dict[str, Any]]]]


def words(text: str) -> int:
    return len(text.split())


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path = folder / f"{name}.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def load(name: str, folder: Path, limit: int, context: int) -> list[Any]:
    return documents(load_benchmark(name), data_dir=folder, limit=limit, context=context, count_tokens=words)


def test_generator_inputs_are_frozen(tmp_path: Path, inputs: Inputs) -> None:
    # Some data folders hold the essays without an organisation in the name.
    write(tmp_path, "source/paulgraham_essays/default/train", inputs["niah_single_2"][0])
    write(tmp_path, "source/rajpurkar__squad/plain_text/validation", inputs["qa_1"][0])
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
        found = load(name, tmp_path / "frozen", 3, 512)
        assert found == load(name, tmp_path / "source", 3, 512)
        assert len(found) == 3
        assert {document.context for document in found} == {512}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"baber__paul_graham_essays/default/train.parquet: no such file"):
        load("niah_single_2", tmp_path / "empty", 1, 512)


def test_question_count_is_limited_by_the_data(tmp_path: Path, inputs: Inputs) -> None:
    few = inputs["qa_2"][0][:12]
    # One of them is longer than the context and is skipped.
    few[3] = few[3] | {"context": {"title": ["long"], "sentences": [["word " * 300]]}}
    write(tmp_path, "hotpotqa__hotpot_qa/distractor/validation", few)
    found = load("ruler_qa_2", tmp_path, 500, 260)
    assert len(found) == 11
    assert found[:4] == load("ruler_qa_2", tmp_path, 4, 260)


def test_published_pairs_keep_their_order(tmp_path: Path) -> None:
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


def test_prompt_template_needs_the_built_in_adapter() -> None:
    benchmark = load_benchmark("gsm8k").model_dump()
    benchmark["generation"]["prompt_template"] = "{{ question }}"
    with pytest.raises(ValueError, match="'prompt_template' belongs to dataset 'evalsuite'"):
        Benchmark.model_validate(benchmark)
    with pytest.raises(ConfigError, match="did you mean 'niah_single_1'"):
        load_benchmark("niah_singel_1")

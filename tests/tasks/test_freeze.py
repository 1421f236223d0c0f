"""Freezing: what is written is what was read, with checksums, and goes on after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import DataError, file_hash
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.documents import documents
from evalsuite.tasks.freeze import freeze

SUITE = "name: s\ntitle: S\nbenchmarks: [piqa, pocket_facts, {benchmark: mmlu, limit: 2}, bear, bbh]\n"


class Source:
    """Three rows of every split, subjects in a column or in configs."""

    def __init__(self, broken: str | None = None) -> None:
        self.read: list[tuple[Any, ...]] = []
        self.broken = broken

    def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
        self.read.append((dataset, config, split))
        if dataset == self.broken:
            raise DataError(f"{dataset}: no route")
        return [
            {"subject": "law", "q": f"{dataset} {config} {split} {number}", "x": {"y": [number, None]}}
            for number in range(3)
        ]

    def merged_rows(self, dataset: str, column: str, split: str) -> list[dict[str, Any]]:
        return self.rows(dataset, None, split)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE)
    return path


def use(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    monkeypatch.setattr("evalsuite.tasks.freeze.open_source", lambda _: source)


def test_a_suite_is_frozen_with_checksums_and_licences(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    use(monkeypatch, source)
    folder = tmp_path / "frozen"
    frozen = freeze(suite, folder, quiet=True)
    names = {each.path.relative_to(folder).as_posix() for each in frozen}
    assert {
        "baber__piqa/default/validation.parquet",
        "cais__mmlu/all/test.parquet",
        "cais__mmlu/all/dev.parquet",
        "lm-pub-quiz__BEAR/BEAR/test.parquet",
        "lm-pub-quiz__BEAR/BEAR/relations.parquet",
        "lukaemon__bbh/navigate/test.parquet",
    } < names
    # PIQA is asked without examples: its training split is not needed.
    assert "baber__piqa/default/train.parquet" not in names
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert set(files) == names
    for each in frozen:
        entry = files[each.path.relative_to(folder).as_posix()]
        assert (entry["sha256"], entry["rows"]) == (file_hash(each.path), 3)
    assert files["baber__piqa/default/validation.parquet"]["licence"] == "AFL-3.0"
    found = documents(load_benchmark("mmlu"), data_dir=folder)
    assert [each.row for each in found] == Source().rows("cais/mmlu", "all", "test")


def test_an_interrupted_freeze_goes_on(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "frozen"
    use(monkeypatch, Source(broken="lm-pub-quiz/BEAR"))
    with pytest.raises(DataError, match="no route"):
        freeze(suite, folder, quiet=True)
    again = Source()
    use(monkeypatch, again)
    freeze(suite, folder, quiet=True)
    assert ("baber/piqa", None, "validation") not in again.read
    assert ("lm-pub-quiz/BEAR", "BEAR", "test") in again.read
    silent = Source()
    use(monkeypatch, silent)
    freeze(suite, folder, quiet=True)
    assert silent.read == []


def test_rows_that_do_not_survive_are_refused(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ragged(Source):
        def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
            return [{"q": "a"}, {"q": "b", "only here": 1}]

    use(monkeypatch, Ragged())
    with pytest.raises(DataError, match="its rows change when they are frozen"):
        freeze(suite, tmp_path / "frozen", quiet=True)
    assert not list((tmp_path / "frozen").rglob("*.parquet"))

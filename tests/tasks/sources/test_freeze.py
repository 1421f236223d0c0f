"""Freezing: round trip, checksums and resumption."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.foundation import ConfigError, DataError, MissingDependencyError, file_hash
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources import assets
from evalsuite.tasks.sources.documents import Document, documents
from evalsuite.tasks.sources.freeze import freeze, freeze_generated

SUITE = "name: s\ntitle: S\nbenchmarks: [piqa, pocket_facts, {benchmark: mmlu, limit: 2}, bear, bbh]\n"


class Source:
    """Three rows per split, with subjects in a column or in configs."""

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
    monkeypatch.setattr("evalsuite.tasks.sources.freeze.open_source", lambda _: source)


def test_suite_is_frozen_with_checksums_and_licenses(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    use(monkeypatch, source)
    folder = tmp_path / "frozen"
    done = freeze(suite, folder, quiet=True)
    frozen = done.files
    assert done.missing == {}
    names = {each.path.relative_to(folder).as_posix() for each in frozen}
    assert {
        "baber__piqa/default/validation.parquet",
        "cais__mmlu/all/test.parquet",
        "cais__mmlu/all/dev.parquet",
        "lm-pub-quiz__BEAR/BEAR/test.parquet",
        "lm-pub-quiz__BEAR/BEAR/relations.parquet",
        "lukaemon__bbh/navigate/test.parquet",
    } < names
    # PIQA has no few-shot examples, so its training split is not frozen.
    assert "baber__piqa/default/train.parquet" not in names
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert set(files) == names
    for each in frozen:
        entry = files[each.path.relative_to(folder).as_posix()]
        assert (entry["sha256"], entry["rows"]) == (file_hash(each.path), 3)
    assert files["baber__piqa/default/validation.parquet"]["license"] == "AFL-3.0"
    found = documents(load_benchmark("mmlu"), data_dir=folder)
    assert [each.row for each in found] == Source().rows("cais/mmlu", "all", "test")


def test_examples_of_completions_and_prefixes_are_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Source())
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntitle: S\nbenchmarks: [arc_easy_fewshot, lambada_completion_padded]\n")
    names = {
        each.path.relative_to(tmp_path / "frozen").as_posix()
        for each in freeze(path, tmp_path / "frozen", quiet=True).files
    }
    assert names == {
        "allenai__ai2_arc/ARC-Easy/test.parquet",
        "allenai__ai2_arc/ARC-Easy/validation.parquet",
        "EleutherAI__lambada_openai/default/test.parquet",
        "Xnhyacinth__LongBench/gov_report/test.parquet",
    }


def test_frozen_needles_are_those_that_a_run_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"Word{number} follows here." for number in range(12_000))
    monkeypatch.setattr(Source, "rows", lambda *_: [{"text": text}])
    monkeypatch.setattr("evalsuite.tasks.sources.documents.open_source", lambda _: Source())
    benchmark = load_benchmark("needle_single_inside")
    benchmark = benchmark.model_copy(
        update={"generated": benchmark.generated.model_copy(update={"count": 3})}  # type: ignore[union-attr]
    )

    def drawn() -> list[Document]:
        return documents(
            benchmark,
            data_dir=tmp_path,
            seed=5,
            context=512,
            count_tokens=lambda text: len(text.split()),
            tokenizer_id="words",
        )

    before = drawn()
    freeze_generated(
        benchmark,
        512,
        tmp_path,
        seed=5,
        tokenizer_id="words",
        count_tokens=lambda text: len(text.split()),
    )
    monkeypatch.setattr("evalsuite.tasks.sources.documents.generate", None)  # Frozen rows are read.
    assert drawn() == before


def test_interrupted_freeze_resumes(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "frozen"
    use(monkeypatch, Source(broken="lm-pub-quiz/BEAR"))
    done = freeze(suite, folder, quiet=True)
    assert done.missing == {"lm-pub-quiz/BEAR": "lm-pub-quiz/BEAR: no route"}
    # Later benchmarks of the suite are frozen regardless.
    assert any("lukaemon__bbh" in str(file.path) for file in done.files)
    again = Source()
    use(monkeypatch, again)
    freeze(suite, folder, quiet=True)
    assert ("baber/piqa", None, "validation") not in again.read
    assert ("lm-pub-quiz/BEAR", "BEAR", "test") in again.read
    silent = Source()
    use(monkeypatch, silent)
    freeze(suite, folder, quiet=True)
    assert silent.read == []


def test_rows_that_parquet_would_change_are_refused(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ragged(Source):
        def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
            return [{"q": "a"}, {"q": "b", "only here": 1}]

    use(monkeypatch, Ragged())
    done = freeze(suite, tmp_path / "frozen", quiet=True)
    assert not done.files
    assert all("its rows change in a round trip" in reason for reason in done.missing.values())
    assert not list((tmp_path / "frozen").rglob("*.parquet"))


def test_changed_file_is_refused_and_refrozen(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "frozen"
    use(monkeypatch, Source())
    freeze(suite, folder, quiet=True)
    path = folder / "baber__piqa/default/validation.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"its SHA-256 is .*freeze it again with `evalsuite prepare`"):
        documents(load_benchmark("piqa"), data_dir=folder)
    again = Source()
    use(monkeypatch, again)
    freeze(suite, folder, quiet=True)
    assert again.read == [("baber/piqa", None, "validation")]


def test_prepare_reports_missing_data(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Source(broken="cais/mmlu"))
    code = main(["prepare", str(suite), "--data", str(tmp_path / "frozen"), "--quiet"])
    captured = capsys.readouterr()
    assert code == DataError.exit_code
    assert "1 data sets are incomplete" in captured.err
    assert "cais/mmlu: no route" in captured.err
    assert "AFL-3.0" in captured.out
    assert main(["prepare", "quik", "--data", str(tmp_path / "frozen")]) == ConfigError.exit_code
    assert "did you mean 'quick'" in capsys.readouterr().err
    assert main(["prepare", "pocket", "--data", str(tmp_path / "none")]) == 0
    assert "generates all its documents" in capsys.readouterr().out


def test_punkt_is_frozen_for_benchmarks_that_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "nltk"
    for file in assets.FILES["punkt_tab"]:
        (there / file).parent.mkdir(parents=True, exist_ok=True)
        (there / file).write_text(file)
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntitle: S\nbenchmarks: [ifeval]\n")
    use(monkeypatch, Source())
    monkeypatch.setattr(assets, "_search_paths", lambda data: [there] if data is None else [Path(data)])
    folder = tmp_path / "frozen"
    done = freeze(path, folder, quiet=True)
    assert len(done.files) == 5
    for file in assets.FILES["punkt_tab"]:
        assert (folder / "nltk_data" / file).read_text() == file
    assert len(json.loads((folder / "manifest.json").read_text())["files"]) == 5


def test_missing_punkt_error_explains_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_search_paths", lambda _: [])
    with pytest.raises(MissingDependencyError, match=r"nltk.downloader punkt_tab.*llama-index-core.*prepare"):
        assets.ensure_asset("punkt_tab", tmp_path)

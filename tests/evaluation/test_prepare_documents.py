"""Documents of stated lengths are frozen once for a tokenizer, and are those that a run would make."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.documents import prepare_documents
from evalsuite.foundation import DataError, read_json
from evalsuite.tasks.generator import GENERATORS
from evalsuite.tasks.synthetic import ruler
from tests.evaluation.runs import evaluate_quietly


@pytest.fixture
def recall(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\ntitle: S\nlimit: 3\nbenchmarks:\n"
        "  - {benchmark: mqar, contexts: [256, 4096]}\n  - {benchmark: kv_retrieval, contexts: [512]}\n"
    )
    return path


def read(run: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(run.rglob("*.jsonl"))}


def test_prepared_documents_equal_generated_documents(
    recall: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    data, count = tmp_path / "data", 5
    for name in ("mqar", "kv_retrieval"):
        own = tmp_path / f"{name}.yaml"
        shipped = (Path(ruler.__file__).parents[2] / "benchmarks" / f"{name}.yaml").read_text()
        own.write_text(shipped.replace("count: 500", f"count: {count}"))
        recall.write_text(recall.read_text().replace(f"benchmark: {name},", f"benchmark: {name}.yaml,"))
    how: dict[str, Any] = {"phases": ("build",), "quiet": True}
    evaluate(RunConfig(suite=recall, checkpoints=[str(tiny)], out=tmp_path / "made", **how))
    assert main(["prepare", str(recall), "--data", str(data), "--checkpoint", str(tiny), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "mqar@4096 is left out" in told
    made = read_json(data / "manifest.json")["files"]
    assert [entry["rows"] for entry in made.values()] == [count, count]
    before = {name: (data / name).stat().st_mtime_ns for name in made}

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("made again")

    monkeypatch.setitem(GENERATORS._items, "ruler", replace(GENERATORS["ruler"], rows=never))
    again = prepare_documents(recall, data, str(tiny), quiet=True)
    assert {file.path.relative_to(data).as_posix() for file in again.files} == set(made)
    assert {name: (data / name).stat().st_mtime_ns for name in made} == before
    evaluate(RunConfig(suite=recall, checkpoints=[str(tiny)], out=tmp_path / "frozen", data=data, **how))
    assert read(tmp_path / "frozen") == read(tmp_path / "made")
    # More than were frozen, or another seed, are other documents.
    recall.write_text(recall.read_text().replace("title: S", "title: S\nseed: 1"))
    with pytest.raises(DataError, match="made again"):
        evaluate(RunConfig(suite=recall, checkpoints=[str(tiny)], out=tmp_path / "seed", data=data, **how))


def test_prepare_reads_as_far_as_a_run_with_the_same_max_length(
    recall: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shipped = (Path(ruler.__file__).parents[2] / "benchmarks" / "mqar.yaml").read_text()
    (tmp_path / "mqar.yaml").write_text(shipped.replace("count: 500", "count: 1"))
    recall.write_text("name: s\ntitle: S\nbenchmarks: [{benchmark: mqar.yaml, contexts: [256, 1280]}]\n")
    prepare = ["prepare", str(recall), "--data", str(tmp_path / "data"), "--quiet"]
    assert main([*prepare, "--max-length", "1280"]) >= 64
    assert "--max-length 1280: a number of tokens, with --checkpoint" in capsys.readouterr().err
    assert main([*prepare, "--checkpoint", str(tiny), "--max-length", "1280"]) == 0
    assert "is left out" not in capsys.readouterr().out
    assert len(read_json(tmp_path / "data" / "manifest.json")["files"]) == 2


def test_prepared_documents_refuse_changed_file(recall: Path, tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    recall.write_text("name: s\ntitle: S\nlimit: 1\nbenchmarks: [{benchmark: mqar, contexts: [256]}]\n")
    (file,) = prepare_documents(recall, data, str(tiny), quiet=True).files
    file.path.write_text(file.path.read_text().replace("500", "600", 1))
    with pytest.raises(DataError, match=r"mqar-.*256\.jsonl: its SHA-256 is .*freeze it again"):
        evaluate_quietly(
            suite=recall, checkpoints=[str(tiny)], out=tmp_path / "run", data=data, phases=("build",)
        )

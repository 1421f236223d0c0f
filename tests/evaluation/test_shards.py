"""A run that grows in pieces: checkpoints that come later, answers of other machines."""

import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.cli import main
from evalsuite.config import RunConfig
from evalsuite.evaluation import estimate_run, evaluate
from evalsuite.evaluation.environment import update_environment
from evalsuite.evaluation.run_paths import read_built
from evalsuite.evaluation.shards.export import export_shard
from evalsuite.evaluation.shards.merge import merge_shards
from evalsuite.evaluation.shards.validate import request_demands
from evalsuite.foundation import ConfigError, DataError, RunFolderError, read_jsonl
from evalsuite.reports.run import Engine, read_environment, read_manifest, write_manifest
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell


def records(run: Path) -> dict[str, list[dict]]:
    return rows_by_cell(run)


def keyed(run: Path) -> dict[tuple[str, str, str], Any]:
    return {
        (name, row["checkpoint"], row["doc_id"]): row["values"]
        for name, rows in records(run).items()
        for row in rows
    }


@pytest.fixture
def host(suite: Path, tmp_path: Path, crew: Any) -> Path:
    """Another machine's copy of a rendered run: requests, plan and environment, and no documents."""
    home = tmp_path / "home"
    evaluate_quietly(suite=suite, out=home, teacher="t", phases=("build",))
    there = tmp_path / "host"
    for name in ("run.json", "environment.json", "requests"):
        kept = home / name
        (shutil.copytree if kept.is_dir() else shutil.copy)(kept, _parent(there) / name)
    return there


def _parent(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_late_checkpoint_needs_no_documents_or_suite(host: Path, suite: Path, tmp_path: Path) -> None:
    home, shard = tmp_path / "home", tmp_path / "shard.tar.xz"
    for protocol in ("loglikelihood", "generation"):
        evaluate_quietly(checkpoints=["t", "b"], out=host, phases=("infer",), protocols=(protocol,))
    assert [each.label for each in read_built(host).checkpoints] == ["t", "b"]
    export_shard(host, shard)
    summary = evaluate_quietly(suite=suite, out=home, phases=("score",), merge_shards=[shard])
    assert (summary.merged, summary.missing) == ({"t": 20, "b": 20}, 0)
    assert [(each.label, each.role) for each in read_manifest(home).checkpoints] == [
        ("t", "teacher"),
        ("b", "student"),
    ]
    whole = tmp_path / "whole"
    evaluate_quietly(suite=suite, checkpoints=["b"], out=whole, teacher="t")
    assert keyed(home) == keyed(whole)
    # Again, and as a folder: nothing is new, nothing changes.
    before = records(home)
    summary = evaluate_quietly(suite=suite, out=home, phases=("score",), merge_shards=[shard, host])
    assert summary.merged == {"t": 0, "b": 0}
    assert records(home) == before
    environment = json.loads((home / "environment.json").read_text())
    assert [(each["label"], each["protocols"]) for each in environment["inference"]] == [
        ("t", ["loglikelihood"]),
        ("b", ["loglikelihood"]),
        ("t", ["generation"]),
        ("b", ["generation"]),
    ]
    # Rendered again, the run still knows them.
    evaluate_quietly(suite=suite, checkpoints=["c"], out=home, phases=("build",))
    assert [each.label for each in read_manifest(home).checkpoints] == ["t", "b", "c"]


def test_a_shard_brings_its_teacher_to_a_run_without_one(
    host: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    shard = export_shard(host, tmp_path / "a.tar.xz")
    run, reads = tmp_path / "alone", []
    evaluate_quietly(suite=suite, checkpoints=["b"], out=run, phases=("build",))
    monkeypatch.setattr(
        "evalsuite.evaluation.shards.merge.request_demands",
        lambda *given: reads.append(given) or request_demands(*given),
    )
    assert merge_shards(run, [shard, host]) == {"t": 20}
    assert {each.label: each.role for each in read_manifest(run).checkpoints} == {
        "t": "teacher",
        "b": "student",
    }
    assert len(reads) == 1, "all shards are checked against requests that are read once"


def test_only_named_benchmarks_are_scored(host: Path, suite: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    merge_shards(home, [host])
    only = RunConfig(out=home, phases=("score",), benchmarks=["pocket_facts"], quiet=True)
    assert evaluate(only).missing == 0
    facts = records(home)
    assert {name.split(".")[0] for name in facts} == {"pocket_facts"}
    with pytest.raises(ConfigError, match="'pocket_fact' is not in this run; did you mean 'pocket_facts'"):
        evaluate(replace(only, benchmarks=["pocket_fact"]))
    evaluate(replace(only, benchmarks=()))
    whole = records(home)
    assert len(whole) > len(facts)
    assert {name: whole[name] for name in facts} == facts


def test_a_shard_of_merged_responses_names_the_machines_that_computed_them(
    host: Path, suite: Path, tmp_path: Path
) -> None:
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    (machine,) = read_environment(host)["inference_hosts"]
    far = machine | {"accelerators": ["far"]}
    update_environment(host, inference_hosts=[far])
    shard = export_shard(host, tmp_path / "first.tar.xz")
    for name in ("second", "third"):
        run = tmp_path / name
        evaluate_quietly(suite=suite, out=run, teacher="t", phases=("build",))
        merge_shards(run, [shard])
        shard = export_shard(run, tmp_path / f"{name}.tar.xz")
        assert read_environment(run)["inference_hosts"] == [far]


def test_a_shard_holds_no_path_of_its_machine(host: Path, tmp_path: Path) -> None:
    machine = str(tmp_path)
    manifest = read_manifest(host)
    away = tuple(replace(each, path=f"{machine}/students/{each.path}") for each in manifest.checkpoints)
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    write_manifest(host, replace(read_manifest(host), checkpoints=away, data=f"{machine}/data"))
    update_environment(host, config={"build": {"data": f"{machine}/data"}})
    with tarfile.open(export_shard(host, tmp_path / "shard.tar.xz")) as archive:
        members = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert not [name for name, text in members.items() if machine in text]
    assert json.loads(members["run.json"])["data"] == "data"
    assert [each["path"] for each in json.loads(members["run.json"])["checkpoints"]] == ["t"]


def test_shard_logprobs_are_float32(host: Path, tmp_path: Path) -> None:
    import numpy as np

    home = tmp_path / "home"
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    merge_shards(home, [export_shard(host, tmp_path / "shard.tar.xz")])
    (there,), (here,) = ((each / "responses").glob("*.score.jsonl") for each in (host, home))
    exact = {str(row["key"]): row["response"] for row in read_jsonl(there)}
    packed = {str(row["key"]): row["response"] for row in read_jsonl(here)}
    assert exact.keys() == packed.keys()
    for key, answer in exact.items():
        assert packed[key]["logprobs"] != answer["logprobs"]
        assert np.float32(packed[key]["logprobs"]).tolist() == np.float32(answer["logprobs"]).tolist()
        assert packed[key]["greedy"] == answer["greedy"]


def test_registration_refuses_invalid_checkpoint(
    host: Path, suite: Path, tmp_path: Path, crew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:

    describe_checkpoints = crew.describe_checkpoints

    def another(paths: list[str], teacher: str | None, **options: object) -> list:
        (subject,) = describe_checkpoints(paths, teacher, **options)
        return [replace(subject, tokenizer="0" * 16) if paths == ["foreign"] else subject]

    monkeypatch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", another)
    with pytest.raises(ConfigError, match=r"foreign: .* has no requests for its tokenizer"):
        evaluate_quietly(suite=suite, checkpoints=["foreign"], out=host, phases=("infer",))
    with pytest.raises(ConfigError, match="unknown protocol 'loglikelyhood'; did you mean 'loglikelihood'"):
        evaluate_quietly(
            suite=suite, checkpoints=["t"], out=host, phases=("infer",), protocols=("loglikelyhood",)
        )


def test_merge_refuses_invalid_shard(host: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(RunFolderError, match="no responses to export"):
        export_shard(host, tmp_path / "shard.tar.xz")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(DataError, match="not a shard of a run"):
        merge_shards(home, [tmp_path / "text"])
    with pytest.raises(DataError, match="names an engine"):
        merge_shards(home, [_parent(tmp_path / "empty")])
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    cut = export_shard(host, tmp_path / "cut.tar.xz")
    cut.write_bytes(cut.read_bytes()[:200])
    with pytest.raises(DataError, match="not a shard of a run"):
        merge_shards(home, [cut])
    other = _parent(tmp_path / "other")
    shutil.copytree(host / "responses", other / "responses")
    manifest, engine = read_manifest(host), Engine(engine="fake", fingerprint="z", max_length=8)
    write_manifest(other, replace(manifest, engines={"weights-z": engine}))
    with pytest.raises(DataError, match="has responses of weights-z, which is no checkpoint"):
        merge_shards(home, [other])
    merge_shards(home, [host])
    write_manifest(other, replace(manifest, engines={"weights-t": engine}))
    for log in (other / "responses").iterdir():
        log.rename(log.with_name(f"z.{log.name.split('.', 1)[1]}"))
    with pytest.raises(RunFolderError, match="responses of t have fingerprint z"):
        merge_shards(home, [other])


def test_shard_of_responses_and_manifest_only(host: Path, tmp_path: Path) -> None:
    home, bare = tmp_path / "home", _parent(tmp_path / "bare")
    evaluate_quietly(checkpoints=["t"], out=host, phases=("infer",))
    shutil.copytree(host / "responses", bare / "responses")
    shutil.copy(host / "run.json", bare / "run.json")
    assert merge_shards(home, [bare]) == {"t": 20}


def test_cli_shard_options_require_their_phase(
    host: Path, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, shard = tmp_path / "home", tmp_path / "p.tar.xz"
    answer = ["run", "--checkpoint", "t", "--out", str(host), "--quiet", "--infer-only"]
    assert main([*answer, "--protocol", "generation", "--export-shard", str(shard)]) == 0
    assert (
        main(["run", str(suite), "--out", str(home), "--quiet", "--score-only", "--merge-shards", str(shard)])
        == 0
    )
    assert "merged responses: t 12" in capsys.readouterr().out
    assert main(["run", "s", "--out", str(home), "--quiet", "--merge-shards", str(shard)]) >= 64
    assert main(["run", "s", "--checkpoint", "t", "--out", str(home), "--export-shard", str(shard)]) >= 64


def test_limit_per_protocol(crew: Any, tmp_path: Path) -> None:
    rows = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(9)]
    path = tmp_path / "data" / "baber__piqa" / "default" / "validation.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nlimits: {generation: 4}\nbenchmarks: [piqa]\n")
    run, data = tmp_path / "run", tmp_path / "data"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=data)
    found = records(run)
    loglikelihood = [row["doc_id"] for row in found["piqa.loglikelihood"]]
    generated = [row["doc_id"] for row in found["piqa.generation"]]
    assert (len(loglikelihood), len(generated)) == (9, 4)
    assert generated == [each for each in loglikelihood if each in generated]
    # Those are the documents that a limit for both protocols would have taken, and a smaller one is a part.
    both = tmp_path / "both"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=both, limit=4, data=data)
    assert {row["doc_id"] for row in records(both)["piqa.loglikelihood"]} == set(generated)
    # Each response is scored against its own document.
    assert {(r["doc_id"], r["detail"]["target"]) for r in found["piqa.generation"]} == {
        (r["doc_id"], r["detail"]["target"]) for r in records(both)["piqa.generation"]
    }
    assert "piqa                     generation                4" in str(
        estimate_run(RunConfig(suite=suite, checkpoints=["a"], out=run, data=data))
    )


def test_interrupted_inference_exports_its_shard(
    host: Path, suite: Path, tmp_path: Path, crew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = crew.engine_factory()

    def interrupted(path: str, label: str) -> Any:
        engine = make(path, label)
        generate = engine.generate

        def some(requests: Any) -> Any:
            for number, given in enumerate(generate(requests)):
                if number == 3:
                    raise KeyboardInterrupt
                yield given

        engine.generate = some
        return engine

    monkeypatch.setattr("evalsuite.evaluation.inference.engines.engine_factory", lambda *_, **__: interrupted)
    shard = tmp_path / "p.tar.xz"
    # The second checkpoint is registered, and has no responses when the run is interrupted.
    answer = ["run", "--checkpoint", "t", "late", "--out", str(host), "--quiet", "--infer-only"]
    assert main([*answer, "--protocol", "generation", "--export-shard", str(shard)]) != 0
    environment = json.loads((host / "environment.json").read_text())
    assert [(each["label"], each["responses"]) for each in environment["inference"]] == [("t", 3)]
    summary = evaluate_quietly(suite=suite, out=tmp_path / "home", phases=("score",), merge_shards=[shard])
    assert (summary.merged, summary.missing) == ({"t": 3}, 17)


def test_benchmarks_run_in_batches(host: Path, crew: Any) -> None:
    needles, rest = "pocket_niah_single_1", "pocket_instructions,pocket_facts"
    evaluate_quietly(suite="small", checkpoints=["t"], out=host, phases=("infer",), benchmarks=[needles])
    (first,) = crew.engines
    assert len(first.requests) == 8
    # Responses of the first call are not computed again, and batches keep their order.
    for label, count in (("t", 12), ("b", 20)):
        evaluate_quietly(
            suite="small", checkpoints=[label], out=host, phases=("infer",), benchmarks=[needles, rest]
        )
        assert len(crew.engines[-1].requests) == count
    assert set(crew.engines[-1].requests[:8]) == set(first.requests)
    for wrong in (["pocket_fact"], ["pocket_facts", "pocket_facts"]):
        with pytest.raises(ConfigError, match="pocket_fact"):
            evaluate_quietly(suite="small", checkpoints=["t"], out=host, phases=("infer",), benchmarks=wrong)

"""A run that grows in pieces: checkpoints that come later, answers of other machines."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.cli import main
from evalsuite.evaluator import evaluate
from evalsuite.evaluator.environment import note
from evalsuite.evaluator.layout import read_index
from evalsuite.evaluator.pieces import add, pack
from evalsuite.foundation import ConfigError, DataError, RunFolderError, read_jsonl
from evalsuite.reports.run_folder import read_plan


def records(run: Path) -> dict[str, list[dict]]:
    return {path.stem: list(read_jsonl(path)) for path in sorted((run / "records").glob("*.jsonl"))}


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
    evaluate(suite, [], home, teacher="t", phases=("render",), quiet=True)
    there = tmp_path / "host"
    for name in ("plan.yaml", "environment.json", "requests"):
        kept = home / name
        (shutil.copytree if kept.is_dir() else shutil.copy)(kept, _parent(there) / name)
    return there


def _parent(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_a_student_that_came_later_is_asked_without_documents_or_suite(
    host: Path, suite: Path, tmp_path: Path
) -> None:
    home, piece = tmp_path / "home", tmp_path / "piece.tar.xz"
    for protocol in ("loglikelihood", "generation"):
        evaluate("no such suite", ["t", "b"], host, phases=("answer",), protocols=(protocol,), quiet=True)
    assert [each.label for each in read_index(host).checkpoints] == ["t", "b"]
    pack(host, piece)
    summary = evaluate("no such suite", [], home, phases=("judge",), pieces=[piece], quiet=True)
    assert (summary.added, summary.missing) == ({"t": 20, "b": 20}, 0)
    assert [(each.label, each.role) for each in read_plan(home).checkpoints] == [
        ("t", "teacher"),
        ("b", "student"),
    ]
    whole = tmp_path / "whole"
    evaluate(suite, ["b"], whole, teacher="t", quiet=True)
    assert keyed(home) == keyed(whole)
    # Again, and as a folder: nothing is new, nothing changes.
    before = records(home)
    summary = evaluate("no such suite", [], home, phases=("judge",), pieces=[piece, host], quiet=True)
    assert summary.added == {"t": 0, "b": 0}
    assert records(home) == before
    environment = json.loads((home / "environment.json").read_text())
    assert [(each["label"], each["protocols"]) for each in environment["answering"]] == [
        ("t", ["loglikelihood"]),
        ("b", ["loglikelihood"]),
        ("t", ["generation"]),
        ("b", ["generation"]),
    ]
    # Rendered again, the run still knows them.
    evaluate(suite, ["c"], home, phases=("render",), quiet=True)
    assert [each.label for each in read_plan(home).checkpoints] == ["t", "b", "c"]


def test_packed_log_probabilities_are_the_nearest_single_precision(host: Path, tmp_path: Path) -> None:
    import numpy as np

    home = tmp_path / "home"
    evaluate("", ["t"], host, phases=("answer",), quiet=True)
    add(home, [pack(host, tmp_path / "piece.tar.xz")])
    (there,), (here,) = ((each / "answers").glob("*.score.jsonl") for each in (host, home))
    exact = {str(row["key"]): row["answer"] for row in read_jsonl(there)}
    packed = {str(row["key"]): row["answer"] for row in read_jsonl(here)}
    assert exact.keys() == packed.keys()
    for key, answer in exact.items():
        assert packed[key]["logprobs"] != answer["logprobs"]
        assert np.float32(packed[key]["logprobs"]).tolist() == np.float32(answer["logprobs"]).tolist()
        assert packed[key]["greedy"] == answer["greedy"]


def test_who_cannot_join_is_refused(
    host: Path, suite: Path, tmp_path: Path, crew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    describe = crew.describe

    def another(paths: list[str], teacher: str | None, **options: object) -> list:
        (subject,) = describe(paths, teacher, **options)
        if paths == ["foreign"]:
            return [replace(subject, tokenizer_id="0" * 16)]
        return [replace(subject, label="t")]

    monkeypatch.setattr("evalsuite.evaluator.checkpoints.describe", another)
    with pytest.raises(ConfigError, match="foreign: its tokenizer is not one that"):
        evaluate(suite, ["foreign"], host, phases=("answer",), quiet=True)
    with pytest.raises(ConfigError, match="the run has another checkpoint called t; give"):
        evaluate(suite, ["x/t"], host, phases=("answer",), quiet=True)
    with pytest.raises(ConfigError, match="protocol 'loglikelyhood'; did you mean 'loglikelihood'"):
        evaluate(suite, ["t"], host, phases=("answer",), protocols=("loglikelyhood",), quiet=True)


def test_what_is_no_piece_of_the_run_is_refused(host: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(RunFolderError, match="nothing is answered here yet"):
        pack(host, tmp_path / "piece.tar.xz")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(DataError, match="not a piece of a run"):
        add(home, [tmp_path / "text"])
    with pytest.raises(DataError, match="names an engine"):
        add(home, [_parent(tmp_path / "empty")])
    evaluate("", ["t"], host, phases=("answer",), quiet=True)
    cut = pack(host, tmp_path / "cut.tar.xz")
    cut.write_bytes(cut.read_bytes()[:200])
    with pytest.raises(DataError, match="not a piece of a run"):
        add(home, [cut])
    other = _parent(tmp_path / "other")
    shutil.copytree(host / "answers", other / "answers")
    note(other, engines={"weights-z": {"engine": "fake", "fingerprint": "z"}})
    with pytest.raises(DataError, match="holds answers of weights-z, which is no checkpoint"):
        add(home, [other])
    add(home, [host])
    engines = {"weights-t": {"engine": "fake", "fingerprint": "z"}}
    (other / "environment.json").write_text(json.dumps({"engines": engines}))
    with pytest.raises(RunFolderError, match="answers of t with fingerprint z"):
        add(home, [other])


def test_answers_and_their_environment_alone_are_a_piece(host: Path, tmp_path: Path) -> None:
    home, bare = tmp_path / "home", _parent(tmp_path / "bare")
    evaluate("", ["t"], host, phases=("answer",), quiet=True)
    shutil.copytree(host / "answers", bare / "answers")
    shutil.copy(host / "environment.json", bare / "environment.json")
    assert add(home, [bare]) == {"t": 20}


def test_the_command_line_keeps_the_options_of_each_step_apart(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, piece = tmp_path / "home", tmp_path / "p.tar.xz"
    answer = ["run", "s", "--checkpoint", "t", "--out", str(host), "--quiet", "--answer-only"]
    assert main([*answer, "--protocol", "generation", "--pack", str(piece)]) == 0
    assert main(["run", "s", "--out", str(home), "--quiet", "--judge-only", "--add", str(piece)]) == 0
    assert "added answers: t 12" in capsys.readouterr().out
    assert main(["run", "s", "--out", str(home), "--quiet", "--add", str(piece)]) >= 64
    assert main(["run", "s", "--checkpoint", "t", "--out", str(home), "--pack", str(piece)]) >= 64


def test_a_protocol_may_be_asked_fewer_documents(crew: Any, tmp_path: Path) -> None:
    rows = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(9)]
    path = tmp_path / "data" / "baber__piqa" / "default" / "validation.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nlimits: {generation: 4}\nbenchmarks: [piqa]\n")
    run, data = tmp_path / "run", tmp_path / "data"
    evaluate(suite, ["a"], run, data_dir=data, quiet=True)
    found = records(run)
    ranked = [row["doc_id"] for row in found["piqa.loglikelihood"]]
    written = [row["doc_id"] for row in found["piqa.generation"]]
    assert (len(ranked), len(written)) == (9, 4)
    assert written == [each for each in ranked if each in written]
    # Those are the documents that a limit for both protocols would have taken, and a smaller one is a part.
    both = tmp_path / "both"
    evaluate(suite, ["a"], both, limit=4, data_dir=data, quiet=True)
    assert {row["doc_id"] for row in records(both)["piqa.loglikelihood"]} == set(written)
    # Each answer is judged against the document that it belongs to.
    assert {(r["doc_id"], r["detail"]["target"]) for r in found["piqa.generation"]} == {
        (r["doc_id"], r["detail"]["target"]) for r in records(both)["piqa.generation"]
    }
    assert "piqa                     generation                4" in str(
        evaluate(suite, ["a"], run, data_dir=data, dry_run=True)
    )


def test_an_interrupted_machine_says_what_it_had_done(
    host: Path, tmp_path: Path, crew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = crew.engine_maker()

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

    monkeypatch.setattr("evalsuite.evaluator.answer.engine_maker", lambda *_, **__: interrupted)
    piece = tmp_path / "p.tar.xz"
    answer = ["run", "s", "--checkpoint", "t", "--out", str(host), "--quiet", "--answer-only"]
    assert main([*answer, "--protocol", "generation", "--pack", str(piece)]) != 0
    environment = json.loads((host / "environment.json").read_text())
    assert [(each["label"], each["answers"]) for each in environment["answering"]] == [("t", 3)]
    summary = evaluate("", [], tmp_path / "home", phases=("judge",), pieces=[piece], quiet=True)
    assert (summary.added, summary.missing) == ({"t": 3}, 17)


def test_benchmarks_are_answered_group_by_group(host: Path, crew: Any) -> None:
    needles, rest = ["pocket_niah_single_1"], ["pocket_instructions", "pocket_facts"]
    evaluate("small", ["t"], host, phases=("answer",), groups=[needles], quiet=True)
    (first,) = crew.engines
    assert len(first.asked) == 8
    # What the first call answered is not asked again, and the groups come in their order.
    for label, count in (("t", 12), ("b", 20)):
        evaluate("small", [label], host, phases=("answer",), groups=[needles, rest], quiet=True)
        assert len(crew.engines[-1].asked) == count
    assert set(crew.engines[-1].asked[:8]) == set(first.asked)
    for wrong in ([["pocket_fact"]], [["pocket_facts"], ["pocket_facts"]]):
        with pytest.raises(ConfigError, match="pocket_fact"):
            evaluate("small", ["t"], host, phases=("answer",), groups=wrong, quiet=True)

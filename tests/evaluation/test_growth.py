"""A run grows by benchmarks, protocols, contexts, documents, seeds and checkpoints, at the cost of these."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.build import requests_path
from evalsuite.evaluation.run_paths import cells_of, read_built
from evalsuite.foundation import ConfigError, EvalsuiteError, RunFolderError
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell

Grow = Callable[..., int]


@pytest.fixture
def grow(crew: Any, tmp_path: Path) -> Grow:
    """Evaluate a suite on checkpoints in one folder, and return the number of requests that it computed."""

    def evaluated(suite: str, *checkpoints: str, **options: Any) -> int:
        before = crew.computed
        config = RunConfig(
            suite=suite, checkpoints=checkpoints or ("a",), out=tmp_path / "run", quiet=True, **options
        )
        summary = evaluate(config)
        assert sum(summary.computed.values()) == crew.computed - before
        return crew.computed - before

    return evaluated


def rows(run: Path) -> dict[str, int]:
    return {name: len(found) for name, found in rows_by_cell(run).items()}


def test_a_benchmark_is_added(grow: Grow, tmp_path: Path) -> None:
    assert grow("pocket_facts:limit=4") == 8
    assert grow("pocket_facts:limit=4,pocket_instructions:limit=3") == 3
    assert grow("pocket_cloze:limit=2") == 4
    assert rows(tmp_path / "run") == {
        "pocket_facts.loglikelihood": 4,
        "pocket_facts.generation": 4,
        "pocket_instructions.generation": 3,
        "pocket_cloze.loglikelihood": 2,
        "pocket_cloze.generation": 2,
    }
    assert (
        read_manifest(tmp_path / "run").suite
        == "pocket_facts-limit-4+pocket_instructions-limit-3+pocket_cloze-limit-2"
    )


def test_a_part_of_a_suite_is_evaluated_and_then_the_rest(grow: Grow, suite: Path, tmp_path: Path) -> None:
    part = grow(str(suite), benchmarks=["pocket_niah_single_1", "pocket_facts"])
    assert {name.split(".")[0] for name in rows(tmp_path / "run")} == {"pocket_facts", "pocket_niah_single_1"}
    rest = grow(str(suite))
    assert len(rows(tmp_path / "run")) > 3
    # Of a complete run, a part costs nothing and loses nothing.
    before = rows(tmp_path / "run")
    assert grow(str(suite), benchmarks=["pocket_facts"]) == 0
    assert rows(tmp_path / "run") == before
    whole = RunConfig(suite=suite, checkpoints=("a",), out=tmp_path / "whole", quiet=True, cache=False)
    assert sum(evaluate(whole).computed.values()) == part + rest


@pytest.mark.parametrize(
    ("benchmarks", "message"),
    [
        (["pocket_fact"], "no benchmark 'pocket_fact'; did you mean 'pocket_facts'"),
        (["pocket_facts,pocket_facts"], "'pocket_facts' is listed twice"),
    ],
)
def test_a_part_that_is_none_is_refused_before_anything_is_built(
    grow: Grow, suite: Path, tmp_path: Path, benchmarks: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        grow(str(suite), benchmarks=benchmarks)
    assert not (tmp_path / "run").exists()


def test_documents_are_added_and_none_is_lost(grow: Grow, tmp_path: Path) -> None:
    grow("pocket_facts", limit=4)
    before = {row["doc_id"]: row for row in rows_by_cell(tmp_path / "run")["pocket_facts.generation"]}
    assert grow("pocket_facts", limit=7) == 6
    after = {row["doc_id"]: row for row in rows_by_cell(tmp_path / "run")["pocket_facts.generation"]}
    assert len(after) == 7
    assert before == {name: after[name] for name in before}
    assert grow("pocket_facts", limit=4) == 0
    assert rows(tmp_path / "run")["pocket_facts.generation"] == 7
    assert read_built(tmp_path / "run").benchmarks[0].protocols["generation"].documents == 7


def test_a_grown_run_equals_one_that_began_so(grow: Grow, crew: Any, tmp_path: Path) -> None:
    grow("pocket_facts", "a", limit=3)
    grow("pocket_facts,pocket_niah_single_1", "a", limit=5)
    grow("pocket_facts,pocket_niah_single_1", "a", "b", limit=5)
    fresh = tmp_path / "fresh"
    evaluate_quietly(suite="pocket_facts,pocket_niah_single_1", checkpoints=("a", "b"), limit=5, out=fresh)
    grown = tmp_path / "run"
    for name in ("scores", "documents", "requests"):
        here, there = (
            {path.relative_to(run): path.read_bytes() for path in (run / name).rglob("*.*")}
            for run in (grown, fresh)
        )
        assert here == there
    one, other = (json.loads((run / "run.json").read_text()) for run in (grown, fresh))
    del one["created"], other["created"]
    assert one == other


def test_a_protocol_is_added(grow: Grow, tmp_path: Path) -> None:
    assert grow("pocket_facts:loglikelihood:limit=4") == 4
    assert grow("pocket_facts:generation:limit=4") == 4
    assert rows(tmp_path / "run") == {"pocket_facts.loglikelihood": 4, "pocket_facts.generation": 4}


def test_protocols_of_sampled_documents_may_differ_in_number(grow: Grow, tmp_path: Path) -> None:
    lines = [
        json.dumps({"prompt": f"Question {n}?", "choices": ["yes", "no"], "answer": 0}) for n in range(9)
    ]
    own = tmp_path / "own.jsonl"
    own.write_text("\n".join(lines))
    assert grow(f"{own}:loglikelihood:limit=3") == 3
    assert grow(f"{own}:generation:limit=6") == 6
    assert grow(f"{own}:loglikelihood") == 6
    assert rows(tmp_path / "run") == {"own.loglikelihood": 9, "own.generation": 6}


def test_contexts_are_added(grow: Grow, tmp_path: Path) -> None:
    suite = tmp_path / "needles.yaml"
    text = (
        "name: needles\ntitle: N\nlimit: 2\nbenchmarks: [{benchmark: pocket_niah_single_1, contexts: [%s]}]\n"
    )
    suite.write_text(text % "256")
    assert grow(str(suite)) == 4
    suite.write_text(text % "128, 256")
    assert grow(str(suite)) == 4
    found = rows_by_cell(tmp_path / "run")["pocket_niah_single_1.generation"]
    assert sorted(row["context"] for row in found) == [128, 128, 256, 256]


def test_seeds_are_added(grow: Grow, tmp_path: Path) -> None:
    suite = tmp_path / "sampled.yaml"
    text = (
        "name: sampled\ntitle: S\nlimit: 2\nseeds: [%s]\nsampling: {temperature: 0.7}\n"
        "benchmarks: [pocket_instructions]\n"
    )
    suite.write_text(text % "0")
    assert grow(str(suite)) == 2
    suite.write_text(text % "0, 1, 2")
    assert grow(str(suite)) == 4
    suite.write_text(text % "1")
    assert grow(str(suite)) == 0
    assert {row["seed"] for row in rows_by_cell(tmp_path / "run")["pocket_instructions.generation"]} == {
        0,
        1,
        2,
    }


def test_a_checkpoint_that_is_left_out_is_named(grow: Grow, crew: Any, tmp_path: Path) -> None:
    grow("pocket_facts:limit=2", "a", "b")
    config = RunConfig(suite="pocket_cloze:limit=3", checkpoints=("b",), out=tmp_path / "run", quiet=True)
    summary = evaluate(config)
    assert summary.missing == 6
    assert "6 responses are missing; name a with --checkpoint, too" in str(summary)
    assert grow("pocket_cloze:limit=3", "a", "b") == 6


def test_a_part_of_a_run_is_scored_under_its_suite(grow: Grow, tmp_path: Path) -> None:
    grow("pocket_facts:limit=2,pocket_cloze:limit=2")
    again = {"checkpoints": (), "out": tmp_path / "run", "quiet": True, "phases": ("score",)}
    evaluate(RunConfig(suite="pocket_facts:limit=2", **again))
    with pytest.raises(RunFolderError, match=r"\(entries\[pocket_facts\]\.limit: 2 there, 3 here"):
        evaluate(RunConfig(suite="pocket_facts:limit=3", **again))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("title: S\nseed: 1", "seed: 0 there, 1 here"),
        ("title: S\nsampling: {temperature: 0.5}", r"entries\[pocket_facts\]\.sampling\.temperature"),
        ("title: S\nbenchmarks: [{benchmark: pocket_facts, prompt: chat}]", r"entries\[pocket_facts\]"),
    ],
)
def test_what_would_change_requests_is_refused(
    change: str, difference: str, grow: Grow, tmp_path: Path
) -> None:
    grow("pocket_facts", limit=2)
    suite = tmp_path / "s.yaml"
    listed = "" if "benchmarks" in change else "\nbenchmarks: [pocket_facts]"
    suite.write_text(f"name: s\n{change}{listed}\n")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunFolderError, match=f"with another configuration than .*{difference}"):
        grow(str(suite), limit=4)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_data_that_lost_documents_of_the_run_is_refused(grow: Grow, tmp_path: Path, monkeypatch: Any) -> None:
    grow("pocket_facts", limit=2)
    path = tmp_path / "run" / "documents" / "pocket_facts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["doc_id"] = "0" * 16
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(EvalsuiteError, match="1 documents of pocket_facts are not in the data"):
        grow("pocket_facts", limit=4)


@pytest.mark.parametrize("step", ["write_documents", "write_manifest", "_build_for_tokenizer"])
@pytest.mark.parametrize("limit", [2, 4])
def test_growth_that_is_interrupted_is_resumed(
    step: str, limit: int, grow: Grow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow("pocket_facts,pocket_cloze", limit=2)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"evalsuite.evaluation.build.{step}", killed)
        with pytest.raises(KeyboardInterrupt):
            grow("pocket_facts,pocket_cloze", limit=4)
    assert grow("pocket_facts,pocket_cloze", limit=limit) in (0, 8)
    assert grow("pocket_facts,pocket_cloze", limit=4) in (0, 8)
    assert set(rows(tmp_path / "run").values()) == {4}


def test_growth_needs_every_tokenizer_of_the_run(
    grow: Grow, crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow("pocket_facts", "a", limit=2)
    describe = crew.describe_checkpoints

    def described(*args: Any, **options: Any) -> Any:
        from dataclasses import replace

        found = describe(*args, **options)
        return [replace(each, tokenizer="other") if each.path == "b" else each for each in found]

    monkeypatch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", described)
    with pytest.raises(RunFolderError, match="pocket_facts also needs requests for the tokenizer of a; pass"):
        grow("pocket_facts", "b", limit=3)
    assert grow("pocket_facts", "b", limit=2) == 4
    assert grow("pocket_facts", "a", "b", limit=3) == 4
    manifest = read_built(tmp_path / "run")
    for cell in cells_of(manifest):
        for tokenizer in {each.tokenizer for each in manifest.checkpoints}:
            assert len(requests_path(tmp_path / "run", tokenizer, cell).read_text().splitlines()) == 3

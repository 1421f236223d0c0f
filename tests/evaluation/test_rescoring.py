"""Scores are derived data: `--score-only` repairs whatever a fixed scorer or a better response changes."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from evalsuite.evaluation import score
from evalsuite.evaluation.scorer_versions import EXTRACTION, scorer_version
from evalsuite.foundation import DataError, EvalsuiteError, named_answers
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.request_set import RequestSet
from evalsuite.protocols.scorers import SCORERS, Scorer, ScorerOutput
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.records.score_files import open_score_file
from evalsuite.reports.run import read_manifest, write_manifest
from evalsuite.tasks.benchmark import FOLDER, load_benchmark
from tests.evaluation.conftest import FakeEngine
from tests.evaluation.runs import evaluate_quietly

KEYS = ["weights_id", "doc_id", "context", "seed"]


def scores(run: Path, benchmark: str = "pocket_facts", protocol: str = "generation") -> pd.DataFrame:
    frame = read_run_scores(run, benchmark, protocol).sort_values(KEYS, ignore_index=True)
    columns = [*KEYS, "outcome", *(name for name in frame if str(name).startswith("value."))]
    return frame[columns].astype(dict.fromkeys(("weights_id", "outcome"), "str"))


def score_again(suite: Path | str, run: Path) -> None:
    evaluate_quietly(suite=suite, out=run, phases=("score",))


@pytest.fixture
def expected(crew: Any, suite: Path, tmp_path: Path) -> Path:
    """A run that nothing went wrong with."""
    evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=tmp_path / "expected")
    return tmp_path / "expected"


whole_adapter = GenerationBenchmark._make_adapter


def without_package(self: GenerationBenchmark, *arguments: Any) -> Any:
    """An adapter that finds no metric, as EvalScope where a package is missing."""
    adapter = whole_adapter(self, *arguments)
    score = SimpleNamespace(value={}, metadata={"error": "needs a package"})
    adapter.calculate_metrics = lambda state: SimpleNamespace(score=score)
    return adapter


def test_missing_dependency_is_repaired_by_score_only(
    suite: Path, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(GenerationBenchmark, "_make_adapter", without_package)
        evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run)
    assert set(scores(run)["outcome"]) == {"error"}
    score_again(suite, run)
    pd.testing.assert_frame_equal(scores(run), scores(expected))


def test_fixed_scorer_repairs_run(
    suite: Path, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(row: Mapping[str, Any], response: str) -> ScorerOutput:
        return ScorerOutput({"accuracy": 1.0 - len(response) % 2}, response, str(row["answer"]))

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setitem(SCORERS._items, "pocket", Scorer(broken))
        evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run)
    assert not scores(run).equals(scores(expected))
    score_again(suite, run)
    pd.testing.assert_frame_equal(scores(run), scores(expected))


def test_raised_max_length_repairs_run(
    suite: Path, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FakeEngine.generate

    def generate(self: FakeEngine, requests: Any) -> Iterator[Any]:
        for number, response in whole(self, requests):
            refusal = requests[number].validation_error(self.max_length)
            yield number, type(response).from_error(refusal) if refusal else response

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(FakeEngine, "generate", generate)
        patched.setattr(FakeEngine, "max_length", 130)
        evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run)
    assert set(scores(run, "pocket_niah_single_1")["outcome"]) > {"error"}
    evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run)
    for benchmark in ("pocket_facts", "pocket_niah_single_1"):
        pd.testing.assert_frame_equal(scores(run, benchmark), scores(expected, benchmark))


def test_current_files_are_left_alone(
    suite: Path, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted((expected / "scores").iterdir())
    assert [path.suffix for path in files] == [".parquet"] * len(files)
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in files}
    monkeypatch.setattr(GenerationBenchmark, "score", None)
    score_again(suite, expected)
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in files} == before
    monkeypatch.undo()
    # A file that is lost or damaged is made again, byte by byte.
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-100])
    score_again(suite, expected)
    assert {path: path.read_bytes() for path in files} == {path: data for path, (data, _) in before.items()}


def test_versions_are_recorded(expected: Path) -> None:
    recorded = json.loads((expected / "environment.json").read_text())["scorers"]
    for path in (expected / "scores").iterdir():
        benchmark, protocol, _, _ = path.name.split(".")
        assert asdict(open_score_file(path)[1].scorer) == recorded[benchmark][protocol]
        assert recorded[benchmark][protocol]["harness_version"]


def test_score_only_refuses_suite_of_another_run(suite: Path, expected: Path, tmp_path: Path) -> None:
    with pytest.raises(EvalsuiteError, match="holds a run of suite small") as caught:
        score_again("pocket-quick", expected)
    assert caught.value.exit_code >= 64
    other = tmp_path / "other.yaml"
    other.write_text(suite.read_text().replace("  - pocket_instructions\n", ""))
    score_again(other, expected)  # A part of the run.


CHANGES = {
    # Of a suite: what it becomes, and what is named.
    "name: small": ("name: smaller", "suite small"),
    "title: Small": ("title: Small\nsampling: {temperature: 0.5}", r"entries\[pocket_facts\]\.sampling"),
    "title: Small\nlimit": ("title: Small\nseed: 1\nlimit", "seed: 0 there, 1 here"),
    "limit: 4": ("limit: 3", r"entries\[pocket_facts\]\.limit: 4 there, 3 here"),
    "limit: 2": ("limit: 1", r"entries\[pocket_niah_single_1\]\.limit: 2 there, 1 here"),
    "  - pocket_facts": (
        "  - {benchmark: pocket_facts, metrics: {loglikelihood: acc_norm}}", r"entries\[pocket_facts\]"
    ),
    "- pocket_facts": ("- {benchmark: pocket_facts, prompt: literal}", r"entries\[pocket_facts\]"),
}  # fmt: skip


def test_score_only_refuses_a_suite_that_has_changed(suite: Path, expected: Path) -> None:
    """It scored with the settings that the run was built with, and said nothing."""
    text = suite.read_text()
    for before, (after, named) in CHANGES.items():
        assert before in text
        suite.write_text(text.replace(before, after))
        with pytest.raises(EvalsuiteError, match=named):
            score_again(suite, expected)


@pytest.mark.parametrize(
    ("before", "after"),
    [("scorer: pocket", "scorer: exact"), ("title: Mine", "title: Yours"), ("chance: 0", "chance: 0.5")],
)
def test_score_only_refuses_a_benchmark_that_has_changed(
    before: str, after: str, crew: Any, tmp_path: Path
) -> None:
    benchmark, suite = tmp_path / "mine.yaml", tmp_path / "own.yaml"
    text = (FOLDER / "pocket_recall.yaml").read_text()
    benchmark.write_text(re.sub("(?m)^title:.*", "title: Mine", text))
    suite.write_text("name: own\ntitle: Own\nlimit: 2\nbenchmarks: [mine.yaml]\n")
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run)
    score_again(suite, run)
    assert before in benchmark.read_text()
    benchmark.write_text(benchmark.read_text().replace(before, after))
    with pytest.raises(EvalsuiteError, match=r"with another configuration than .*own\.yaml \(entries\["):
        score_again(suite, run)


def test_the_order_of_a_suite_and_its_keys_change_no_run(suite: Path, expected: Path) -> None:
    value = read_yaml(suite)
    value["benchmarks"].reverse()
    suite.write_text("# as another editor writes it\n" + yaml.safe_dump(value, sort_keys=True))
    before = {path.name: path.read_bytes() for path in (expected / "scores").iterdir()}
    score_again(suite, expected)
    evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=expected)
    assert {path.name: path.read_bytes() for path in (expected / "scores").iterdir()} == before


def test_limits_of_the_command_belong_to_the_run(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, limit=2)
    score_again(suite, run)
    with pytest.raises(EvalsuiteError, match=r"limit: 2 there, 3 here"):
        evaluate_quietly(suite=suite, out=run, phases=("score",), limit=3)


@pytest.mark.parametrize("changed", EXTRACTION)
def test_what_decides_outcomes_is_part_of_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    benchmark, folder = load_benchmark("arc_easy"), Path(named_answers.__file__).parent
    before = scorer_version(benchmark, "generation")
    for copy, more in (("same", ""), ("other", "\nMORE = 1\n")):
        (tmp_path / copy).mkdir()
        for name in EXTRACTION:
            text = (folder / name).read_text() + (more if name == changed else "")
            (tmp_path / copy / name).write_text(text)
        monkeypatch.setattr(named_answers, "__file__", str(tmp_path / copy / "named_answers.py"))
        assert (scorer_version(benchmark, "generation") == before) is (copy == "same")


def test_documents_that_are_sorted_or_lost_are_refused(suite: Path, expected: Path) -> None:
    """Responses belong to documents by their place: other documents would be scored with them."""
    path = expected / "documents" / "pocket_facts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for changed, told in (
        (lines[::-1], "has document .* where the requests have"),
        (lines[:-1], "3 documents, expected 4"),
        ([*lines[:-1], lines[-1][:-2]], "line 4: ends within a line"),
    ):
        path.write_text("".join(changed))
        with pytest.raises(DataError, match=rf"pocket_facts\.jsonl.*{told}"):
            score_again(suite, expected)


def test_a_log_of_no_engine_is_named(suite: Path, expected: Path) -> None:
    """It was taken for missing responses, which `--score-only` cannot compute."""
    manifest = read_manifest(expected)
    engines = manifest.engines
    write_manifest(expected, replace(manifest, engines={"weights-a": engines["weights-a"]}))
    with pytest.raises(DataError, match=rf"{engines['weights-b'].fingerprint}.*names no engine"):
        score_again(suite, expected)


def test_a_document_is_scored_with_all_of_its_responses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [RequestSet(name, None, "h", score_requests=(), choices=()) for name in "ab"]
    monkeypatch.setattr(score, "read_requests", lambda *_: sets)
    monkeypatch.setattr(score, "_keys", lambda cell, each: [[(each.doc_id, 0), (each.doc_id, 1)]])
    scorer = object.__new__(score._RunScorer)
    limit = SimpleNamespace(reads=lambda _: True)
    scorer.run = Path()
    scorer.manifest = SimpleNamespace(fingerprints={"w": "f"}, limit=lambda _: limit)
    known = {("a", 0): "x", ("a", 1): "y", ("b", 0): "z"}
    scorer.cache = SimpleNamespace(get_by_key=lambda _, key: known.get(key))
    cell = SimpleNamespace(documents=2, seeds=(0,), sampling_params=None, benchmark="m", protocol="p")
    checkpoint = SimpleNamespace(weights_id="w", tokenizer="t", label="c")
    documents = [SimpleNamespace(doc_id=name, cluster=None) for name in "ab"]
    ((sample,),) = scorer._samples(cell, [checkpoint], documents)
    assert (sample.request_set.doc_id, sample.responses) == ("a", ["x", "y"])

"""Scores are derived data: `--score-only` repairs whatever a mended scorer or a better response changes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.evaluation import evaluate
from evalsuite.foundation import EvalsuiteError
from evalsuite.protocols import scorers
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.request_set import Score
from evalsuite.protocols.scorers import ScorerOutput
from evalsuite.reports.records.reading import read_run_scores
from tests.evaluation.conftest import FakeEngine

KEYS = ["weights_id", "doc_id", "context", "seed"]


def scores(run: Path, benchmark: str = "pocket_facts", protocol: str = "generation") -> pd.DataFrame:
    frame = read_run_scores(run, benchmark, protocol).sort_values(KEYS, ignore_index=True)
    columns = [*KEYS, "outcome", *(name for name in frame if str(name).startswith("value."))]
    return frame[columns].astype({name: "str" for name in ("weights_id", "outcome")})


def score_again(suite: Path, run: Path) -> None:
    evaluate(suite, [], run, phases=("score",), quiet=True)


@pytest.fixture
def expected(crew: Any, suite: Path, tmp_path: Path) -> Path:
    """A run that nothing went wrong with."""
    evaluate(suite, ["a", "b"], tmp_path / "expected", quiet=True)
    return tmp_path / "expected"


def test_missing_dependency_is_repaired_by_score_only(
    suite: Path, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(
            GenerationBenchmark, "score", lambda *_: Score.from_error("needs a package", chance=None)
        )
        evaluate(suite, ["a", "b"], run, quiet=True)
    assert set(scores(run)["outcome"]) == {"error"}
    score_again(suite, run)
    pd.testing.assert_frame_equal(scores(run), scores(expected))


def test_mended_scorer_repairs_run(
    suite: Path, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(row: Mapping[str, Any], response: str) -> ScorerOutput:
        return ScorerOutput({"accuracy": 1.0 - len(response) % 2}, response, str(row["answer"]))

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setitem(scorers.SCORERS, "pocket", broken)
        evaluate(suite, ["a", "b"], run, quiet=True)
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
        evaluate(suite, ["a", "b"], run, quiet=True)
    assert set(scores(run, "pocket_niah_single_1")["outcome"]) > {"error"}
    evaluate(suite, ["a", "b"], run, quiet=True)
    for benchmark in ("pocket_facts", "pocket_niah_single_1"):
        pd.testing.assert_frame_equal(scores(run, benchmark), scores(expected, benchmark))


def test_score_only_refuses_suite_of_another_run(suite: Path, expected: Path, tmp_path: Path) -> None:
    with pytest.raises(EvalsuiteError, match="holds a run of suite small") as caught:
        score_again(Path("pocket-quick"), expected)
    assert caught.value.exit_code >= 64
    other = tmp_path / "other.yaml"
    other.write_text(suite.read_text().replace("  - pocket_instructions\n", ""))
    with pytest.raises(EvalsuiteError, match="pocket_instructions"):
        score_again(other, expected)

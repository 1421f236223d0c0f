"""The score table of one run: directions of side metrics, and perplexities per unit."""

import math
from pathlib import Path

import pytest

from evalsuite.reports.records.schema import ScoreRow
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.run import Benchmark, Checkpoint, Manifest, ProtocolSettings
from tests.reports.score_edits import write_rows


def plan(metric: str, **how: str) -> Manifest:
    protocol = ProtocolSettings(metric=metric, documents=2, **how)
    return Manifest(
        suite="s",
        created="2026-11-21T08:00:00Z",
        benchmarks=(
            Benchmark(
                name="words", title="W", category="language_modeling", protocols={"loglikelihood": protocol}
            ),
        ),
        checkpoints=(Checkpoint(label="m", weights_id="w", role="teacher"),),
    )


def record(run: Path, *values: dict[str, float]) -> None:
    identity = {"weights_id": "w", "fingerprint": "f", "benchmark": "words", "protocol": "loglikelihood"}
    place = {"seed": 0, "context": None, "prompt_hash": "p", "sampling": "", "checkpoint": "m"}
    write_rows(
        run,
        [
            ScoreRow(**identity, **place, doc_id=f"{number}", values=each, chance=None, outcome="ok")
            for number, each in enumerate(values)
        ],
    )


def test_secondary_perplexity_is_lower_is_better(tmp_path: Path) -> None:
    record(tmp_path, {"acc": 1.0, "perplexity": 0.5}, {"acc": 0.0, "perplexity": 2.5})
    table = score_table(tmp_path, plan("acc")).set_index("metric")
    assert dict(table["direction"]) == {"acc": "higher", "perplexity": "lower"}
    assert dict(table["main"]) == {"acc": True, "perplexity": False}
    # The log-perplexity: lm-eval's perplexity is its exponential.
    assert table.loc["perplexity", "score"] == pytest.approx(1.5)
    assert math.isnan(table.loc["perplexity", "low"])


def test_perplexities_are_per_unit(tmp_path: Path) -> None:
    record(
        tmp_path,
        {"word_perplexity": 30.0, "words": 10.0, "byte_perplexity": 30.0, "bytes": 50.0},
        {"word_perplexity": 20.0, "words": 10.0, "byte_perplexity": 20.0, "bytes": 30.0},
    )
    table = score_table(tmp_path, plan("word_perplexity", direction="lower", units="words"))
    assert set(table["direction"]) == {"lower"}
    assert dict(zip(table["metric"], table["score"], strict=True)) == {
        "word_perplexity": 50 / 20,
        "byte_perplexity": 50 / 80,
    }

"""Parity with lm-eval's HFLM and with transformers' generate, on the same token ids."""

import random
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import read_json
from evalsuite.models.checkpoints.load import load_checkpoint
from tests.parity import greedy_generation
from tests.parity.lm_eval_loglikelihoods import Comparison, main


@pytest.mark.parametrize("hybrid", [[], ["--hybrid", "gla"]])
def test_hflm_gives_the_same_logprobs_for_the_same_requests(
    tiny: Path, tmp_path: Path, hybrid: list[str]
) -> None:
    out = tmp_path / "found.json"
    argv = [
        str(tiny),
        *hybrid,
        "--same-requests",
        "--benchmarks",
        "pocket_facts",
        "--limit",
        "6",
        "--out",
        str(out),
    ]
    assert main(argv) == 0
    (row,) = read_json(out)["rows"]
    assert row["documents"] == 6
    assert row["largest"] < 1e-3
    assert row["score"] == row["hflm_score"]


def test_hflm_choices_may_differ_only_in_near_ties() -> None:
    row = Comparison(
        benchmark="x",
        documents=3,
        choices=6,
        largest=1e-4,
        mean=1e-5,
        score=0.5,
        hflm_score=0.5,
        changed=[("near", 1e-4), ("far", 1e-2)],
    )
    assert row.unexplained() == ["far"]
    assert not row.holds()


def test_greedy_generation_equals_transformers_generate(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_checkpoint(tiny, dtype="float32")
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(5, 200) for _ in range(draw.randint(3, 30))) for _ in range(6)]
    found = greedy_generation.compare(checkpoint, prompts, 12, quiet=True)
    assert (found.prompts, found.alone, found.batched, found.divergences) == (6, 6, 6, [])
    assert found.tokens > 6

    plain = greedy_generation.generated

    def other(*requested: Any) -> tuple[int, ...]:
        return (*plain(*requested)[:4], 3)

    monkeypatch.setattr(greedy_generation, "generated", other)
    changed = greedy_generation.compare(checkpoint, prompts[:1], 12, quiet=True)
    assert (changed.alone, changed.batched) == (0, 0)
    assert [(each.batched, each.position) for each in changed.divergences] == [(False, 4), (True, 4)]
    assert "batched: token 4, margin" in greedy_generation.table("tiny", changed)

"""The comparisons with HFLM and with transformers on the same token ids."""

import random
from pathlib import Path
from typing import Any

import pytest

from evalsuite.evaluator import agreement_greedy
from evalsuite.evaluator.agreement import Agreement
from evalsuite.evaluator.agreement_full import beyond, main
from evalsuite.foundation import read_json
from evalsuite.models.checkpoints import load_checkpoint


@pytest.mark.parametrize("hybrid", [[], ["--hybrid", "gla"]])
def test_both_sides_give_the_same_numbers(tiny: Path, tmp_path: Path, hybrid: list[str]) -> None:
    out = tmp_path / "found.json"
    argv = [str(tiny), *hybrid, "--benchmarks", "pocket_facts", "--limit", "6", "--out", str(out)]
    assert main(argv) == 0
    (row,) = read_json(out)["rows"]
    assert row["documents"] == 6
    assert row["largest"] < 1e-3
    assert row["score"] == row["their_score"]


def test_only_near_ties_may_come_out_another_way() -> None:
    row = Agreement(
        benchmark="x",
        documents=3,
        choices=6,
        largest=1e-4,
        mean=1e-5,
        score=0.5,
        their_score=0.5,
        differing=[("near", 1e-4), ("far", 1e-2)],
    )
    assert beyond(row) == ["far"]


def test_greedy_answers_are_those_of_transformers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_checkpoint(tiny, dtype="float32")
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(5, 200) for _ in range(draw.randint(3, 30))) for _ in range(6)]
    found = agreement_greedy.compare(checkpoint, prompts, 12, quiet=True)
    assert (found.prompts, found.alone, found.batched, found.divergences) == (6, 6, 6, [])
    assert found.tokens > 6

    plain = agreement_greedy.generated

    def other(*asked: Any) -> tuple[int, ...]:
        return (*plain(*asked)[:4], 3)

    monkeypatch.setattr(agreement_greedy, "generated", other)
    changed = agreement_greedy.compare(checkpoint, prompts[:1], 12, quiet=True)
    assert (changed.alone, changed.batched) == (0, 0)
    assert [(each.batched, each.place) for each in changed.divergences] == [(False, 4), (True, 4)]
    assert "batched: token 4, margin" in agreement_greedy.table("tiny", changed)

"""The comparison with HFLM on the same token ids, for a teacher and a hybrid of it."""

from pathlib import Path

import pytest

from evalsuite.evaluator.agreement import Agreement
from evalsuite.evaluator.agreement_full import beyond, main
from evalsuite.foundation import read_json


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

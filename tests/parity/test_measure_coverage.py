"""Coverage of the measures' intervals: simulated answers have the stated truth; results are stored."""

import csv
from pathlib import Path

import numpy as np
import pytest

from evalsuite.reports.measures.agreement.rows import AgreementPool, benchmark_agreement_rows
from evalsuite.reports.measures.distances.rows import distance_rows
from tests.parity.measure_coverage import REQUIRED, STUDIES, holds, main
from tests.parity.simulated_answers import (
    PROTOCOL,
    Answers,
    Divergences,
    draw_answers,
    draw_divergences,
    tensor_of,
)


@pytest.mark.parametrize("copied", [0.3, 0.9])
def test_simulated_answers_have_the_stated_truth(copied: float) -> None:
    setting = Answers(documents=40_000, teacher=(0.6,), copied=(copied,), alone=(0.35,))
    drawn = draw_answers(setting, np.random.default_rng(3))
    ((gold, choices),) = drawn.benchmarks
    right, same = choices == gold, choices[0] == choices[1]
    assert right[0].mean() == pytest.approx(0.6, abs=0.01)
    assert right[1].mean() == pytest.approx(setting.student_score(0), abs=0.01)
    assert same.mean() == pytest.approx(setting.truth("agreement"), abs=0.01)
    assert right[1][right[0]].mean() == pytest.approx(setting.truth("retained"), abs=0.01)
    assert (right[0] & ~right[1]).mean() == pytest.approx(setting.truth("lost"), abs=0.01)
    expected = sum((choices[0] == kind).mean() * (choices[1] == kind).mean() for kind in range(4))
    assert (same.mean() - expected) / (1 - expected) == pytest.approx(setting.truth("kappa"), abs=0.012)


def test_simulated_divergences_have_the_stated_truth() -> None:
    setting = Divergences(documents=20_000, spread=0.5, level=0.3)
    tensor, frame = draw_divergences(setting, np.random.default_rng(4))
    rows = {row.bits: row.kl.point for row in distance_rows(tensor, frame) if row.kind == "all"}
    assert rows == pytest.approx({None: 0.3, **dict(setting.scale)}, rel=0.03)


def test_perfect_agreement_of_few_documents_is_no_certainty() -> None:
    """κ of sixty equal answers is 1; a bootstrap of them has no spread."""
    tensor = tensor_of(draw_answers(Answers(documents=60, copied=(1.0,)), np.random.default_rng(5)))
    (row,) = benchmark_agreement_rows(AgreementPool(tensor, PROTOCOL, 0))
    kappa, agreement = row.kappa.interval, row.agreement.interval
    assert kappa.point == pytest.approx(1.0)
    assert 0.9 < agreement.low < 0.95
    assert 1 - kappa.low == pytest.approx((1 - agreement.low) / (1 - 0.25), rel=0.05)


def test_command_writes_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.parity.measure_coverage.STUDIES", (STUDIES[0], STUDIES[-1]))
    assert main(["--out", str(tmp_path), "--simulations", "3"]) in (0, 1)
    measures = [row["measure"] for row in csv.DictReader((tmp_path / "measures.csv").open())]
    assert measures == ["agreement", "kappa", "retained", "lost", "KL", "equivalent bits"]
    assert "of 6 rows hold" in (tmp_path / "measures.md").read_text()


def test_a_coverage_holds_within_the_error_of_its_simulation() -> None:
    assert holds(REQUIRED, 10_000)
    assert holds(0.90, 300)
    assert not holds(0.867, 400)
    assert not holds(0.90, 2000)

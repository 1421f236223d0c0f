"""The section on states shows what the probes of the run say."""

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalsuite.reports import compare
from evalsuite.reports.measures.probes import ProbeRow, probes
from evalsuite.reports.records.probes import FILE, PROBE_FILE, SEGMENTS
from evalsuite.reports.run import read_manifest
from tests.reports.page.test_sections import Sections

DOCUMENTS = 8
HALF_LIVES = (10.0, 100.0)
"""Of the two heads."""


def document(weights_id: str, number: int, *, keeps: float) -> list[dict[str, object]]:
    """A recurrent layer 0 with two heads and a softmax layer 1; every second needle is found."""
    found = []
    for layer, head, segment in [
        *((0, head, segment) for head in (0, 1) for segment in SEGMENTS),
        *((1, head, "question") for head in (0, 1)),
    ]:
        state = 1.0 if layer == 0 else np.nan
        retained = keeps * (1.5 if number % 2 == 0 else 0.5) * (1 + 0.01 * number)
        found.append(
            {
                "weights_id": weights_id,
                "dtype": "float32",
                "benchmark": "niah_single_1",
                "context": 512,
                "doc_id": f"{number:016x}",
                "depth": 100 * number / (DOCUMENTS - 1),
                "answer_tokens": 4,
                "answer_right": 4 if number % 2 == 0 else 2,
                "answer_logprob": -1.0,
                "layer": layer,
                "mixer": "gla" if layer == 0 else "softmax",
                "head": head,
                "segment": segment,
                "tokens": 20,
                "log_decay": -math.log(2) / HALF_LIVES[head] * state,
                "slowest_log_decay": -math.log(2) / HALF_LIVES[head] / 10 * state,
                "beta": np.nan,
                "write": 0.2 * state,
                "norm": 5.0 * state,
                "rank": (2.0 + head + SEGMENTS.index(segment)) * state,
                "retained": np.nan if segment == "before" else retained * state,
                "readout": (0.1 + 0.2 * head + 0.3 * layer) if segment == "question" else np.nan,
            }
        )
    return found


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    _, strong, weak = (each.weights_id for each in read_manifest(run).checkpoints)
    rows = [
        row
        for weights_id, keeps in ((strong, 0.6), (weak, 0.2))
        for number in range(DOCUMENTS)
        for row in document(weights_id, number, keeps=keeps)
    ]
    PROBE_FILE.add(run, pd.DataFrame(rows))
    return run


def test_rows_are_means_over_documents_and_heads(run: Path, tmp_path: Path) -> None:
    comparison = compare([run], tmp_path / "out", samples=False)
    rows = comparison.report.of(probes)

    def one(segment: str = "question", group: str = "all", layer: int = 0) -> ProbeRow:
        (row,) = (
            r for r in rows if (r.checkpoint, r.segment, r.group, r.layer) == (1, segment, group, layer)
        )
        return row

    shares = np.array([0.6 * (1.5 if n % 2 == 0 else 0.5) * (1 + 0.01 * n) for n in range(DOCUMENTS)])
    half = 2.364624 * shares.std(ddof=1) / math.sqrt(DOCUMENTS)  # t with 7 degrees of freedom
    found = one().retained.interval
    assert (found.point, found.low) == pytest.approx((shares.mean(), shares.mean() - half), rel=1e-4)
    assert one(group="found").retained.point == pytest.approx(shares[::2].mean(), rel=1e-5)
    assert one(group="missed").retained.point == pytest.approx(shares[1::2].mean(), rel=1e-5)
    assert (one().documents, one().found, one(group="missed").found) == (DOCUMENTS, DOCUMENTS // 2, 0)
    assert one().tokens_right.point == pytest.approx(0.75)
    assert one(group="0-25 %").documents == one(group="75-100 %").documents == 2
    # The median of two heads is the mean of their rates.
    assert one().half_life.point == pytest.approx(2 / (1 / 10 + 1 / 100), rel=1e-5)
    assert one().longest_half_life.point == pytest.approx(1000, rel=1e-5)
    assert [one(segment).rank.point for segment in SEGMENTS] == pytest.approx([2.5, 3.5, 4.5, 5.5])
    assert (one().readout_head, one().readout.point) == (1, pytest.approx(0.3))
    assert one("before").retained.why == "the needle is not read yet"
    assert one().beta.why == "the mixer adds its writes"
    # Student's t of two documents reaches far beyond what a share or a norm can be.
    few = one(group="0-25 %")
    assert few.retained.interval.low == 0 < few.retained.interval.point
    assert few.tokens_right.interval.high == 1 > few.tokens_right.interval.point
    attention = one(layer=1)
    assert attention.readout.point == pytest.approx(0.6)
    assert attention.rank.why == attention.half_life.why == "softmax attention has no state"
    table = pd.read_csv(tmp_path / "out" / "probes.csv")
    assert len(table) == len(rows)
    cell = table[(table["label"] == "strong") & (table["group"] == "found") & (table["layer"] == 0)]
    assert cell["retained"].item() == pytest.approx(one(group="found").retained.point)


def test_the_section_shows_every_student(run: Path, tmp_path: Path) -> None:
    page = Sections(compare([run], tmp_path / "out", samples=False).page.read_text())
    figures = page.figures["probe"]
    assert list(figures) == [
        "Needle's value in the state at the question",
        "Readout of the needle's value",
        "Longest half-life after the needle",
        "Found and missed needles",
        "Needle's value at the question by depth",
        "Effective rank of the states: strong",
        "Effective rank of the states: weak",
    ]
    held = figures["Needle's value in the state at the question"]["data"]
    assert [trace["name"] for trace in held] == ["strong", "weak"]
    assert held[0]["y"][0] == pytest.approx(3 * held[1]["y"][0], rel=1e-3)
    assert figures["Readout of the needle's value"]["data"][0]["y"] == pytest.approx([30, 60])
    ranks = figures["Effective rank of the states: strong"]
    assert ranks["data"][0]["z"] == [[2.5, 3.5, 4.5, 5.5], [None] * 4]
    assert ranks["layout"]["yaxis"]["ticktext"] == ["0 gla", "1 softmax"]
    names = [trace["name"] for trace in figures["Found and missed needles"]["data"]]
    assert names == ["strong, found (4)", "strong, missed (4)", "weak, found (4)", "weak, missed (4)"]
    strong = page.rows["probe"][1]
    assert strong[0] == "strong"
    assert strong[1] == "4 of 8"
    assert "layer 1, head 1 (softmax)" in strong


def test_a_state_without_decay_has_no_half_life(run: Path, tmp_path: Path) -> None:
    """Its student stays in the legend, so that colors are the same in every figure."""
    rows = PROBE_FILE.read(run / FILE)
    strong = read_manifest(run).checkpoints[1].weights_id
    kept = (rows["weights_id"] == strong) & (rows["layer"] == 0)
    rows.loc[kept, ["log_decay", "slowest_log_decay"]] = 0.0
    PROBE_FILE.add(run, rows)
    comparison = compare([run], tmp_path / "out", samples=False)
    row = next(r for r in comparison.report.of(probes) if (r.checkpoint, r.layer) == (1, 0))
    assert row.half_life.why == row.longest_half_life.why == "the state does not decay"
    page = Sections(comparison.page.read_text())
    assert "no decay" in page.rows["probe"][1]
    curves = page.figures["probe"]["Longest half-life after the needle"]["data"]
    assert [(curve["name"], len(curve["x"])) for curve in curves] == [("strong", 0), ("weak", 1)]


def test_without_probes_there_is_no_section(small_run: Path, tmp_path: Path) -> None:
    assert "probe" not in Sections(compare([small_run], tmp_path, samples=False).page.read_text()).text
    assert not (tmp_path / "probes.csv").exists()

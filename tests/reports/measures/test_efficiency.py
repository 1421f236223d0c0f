"""Ratios, crossovers and fits of efficiency measurements, against closed forms."""

import math
from dataclasses import replace
from typing import Any

import pytest

from evalsuite.foundation.efficiency import EfficiencyRow, Spread
from evalsuite.foundation.typed import from_json
from evalsuite.reports.measures.efficiency import (
    ALONE,
    CROSSOVERS,
    EFFICIENCY,
    crossover_table,
    efficiency_text,
    engine_table,
    paper_rows,
    pareto_front,
    ratio_rows,
)
from evalsuite.reports.measures.efficiency.comparison import (
    Ratio,
    by_context,
    crossover,
    families,
    growth_exponent,
    pairings,
    ratios,
    settings,
    synthetic_deviation,
)
from evalsuite.reports.measures.efficiency.context_charts import efficiency_charts
from evalsuite.reports.references.efficiency import paper_ratios

CONTEXTS = (512, 1024, 2048, 4096, 8192, 32768, 131072)


def spread(median: float, around: float = 0.0) -> dict[str, Any]:
    return {"median": median, "low": median * (1 - around), "high": median * (1 + around), "repeats": 3}


def row(model: str, context: int, **values: Any) -> EfficiencyRow:
    made = {
        "schema": 2,
        "label": f"shape, {model}",
        "weights_id": model,
        "teacher": None if model == "teacher" else "teacher",
        "engine": "torch",
        "device": "GPU",
        "dtype": "bfloat16",
        "parameters": 10,
        "kind": "request",
        "context": context,
        "batch": 1,
        "status": "ok",
    }
    return from_json(made | values, EfficiencyRow, "row")


@pytest.fixture(scope="module")
def rows() -> list[EfficiencyRow]:
    """A teacher of quadratic and a student of linear time, equal at 4,000 tokens."""
    made = []
    for context in CONTEXTS:
        made.append(
            row("teacher", context, ttft_ms=spread(context**2 / 4000, 0.1), cache_bytes=100 * context)
        )
        made.append(row("student+softmax/4", context, ttft_ms=spread(context, 0.1), cache_bytes=51_200))
        for batch in (1, 2, 4):
            # A teacher's step grows with batch and context, a student's with the batch.
            teacher, student = 1 + batch * context / 1000, 1 + batch
            made += [
                row("teacher", context, kind="decode", batch=batch, step_ms=spread(teacher)),
                row(
                    "student+softmax/4",
                    context,
                    kind="decode",
                    batch=batch,
                    step_ms=spread(student),
                    joules=0.1,
                ),
            ]
    made.append(row("teacher", 262144, status="out_of_memory", detail="full"))
    return made


def test_a_crossover_is_where_the_lines_cross(rows: list[EfficiencyRow]) -> None:
    found = ratios(rows, "student+softmax/4", "teacher", "prefill")
    assert [each.point for each in found] == pytest.approx([c / 4000 for c in CONTEXTS])
    cross = crossover(found, "prefill")
    assert cross is not None
    # Interpolation on logarithmic axes is exact for a power.
    assert cross.context == pytest.approx(4000)
    assert cross.low == pytest.approx(4000 * 0.9 / 1.1)
    assert cross.high == pytest.approx(4000 * 1.1 / 0.9)
    assert cross.text == "from 4,000 (3,273 to 4,889)"


@pytest.mark.parametrize(
    ("values", "context", "text"),
    [
        ((2.0, 3.0), 0.0, "everywhere"),
        ((0.5, 0.9), math.inf, "nowhere"),
        ((2.0, 0.9), math.inf, "nowhere"),
        ((2.0, 0.5, 2.0), math.sqrt(200 * 300), "from 245"),
        ((1.0, 2.0), 100.0, "from 100"),
    ],
)
def test_crossovers_at_the_ends(values: tuple[float, ...], context: float, text: str) -> None:
    found = [Ratio(100 * (number + 1), value, value, value) for number, value in enumerate(values)]
    cross = crossover(found, "decode")
    assert cross is not None
    assert cross.context == pytest.approx(context)
    assert cross.text == text


def test_an_uncertain_crossover_has_open_ends() -> None:
    found = [Ratio(100, 0.8, 0.6, 1.1), Ratio(200, 1.2, 0.9, 1.5)]
    cross = crossover(found, "decode")
    assert cross is not None
    assert cross.text == "from 146 (below 100 to beyond)"
    assert crossover(found[:1], "decode") is None


def test_the_best_batch_counts(rows: list[EfficiencyRow]) -> None:
    found = by_context(rows, "teacher", "peak_throughput")
    assert found[512].median == pytest.approx((1 + 4 * 0.512) / 4)
    ratio = ratios(rows, "student+softmax/4", "teacher", "peak_throughput")[-1]
    assert ratio.point == pytest.approx((1 + 4 * 131.072) / 4 / (5 / 4))


def test_growth_is_the_exponent(rows: list[EfficiencyRow]) -> None:
    assert growth_exponent(by_context(rows, "teacher", "prefill")) == pytest.approx(2)
    assert growth_exponent(by_context(rows, "student+softmax/4", "prefill")) == pytest.approx(1)
    assert growth_exponent(by_context(rows, "student+softmax/4", "cache")) == pytest.approx(0)
    assert growth_exponent({512: Spread(median=1, low=1, high=1, repeats=1)}) is None


def test_failed_points_have_no_value(rows: list[EfficiencyRow]) -> None:
    assert 262144 not in by_context(rows, "teacher", "prefill")
    (line,) = (line for line in efficiency_text(rows).splitlines() if "out of memory" in line)
    assert line.split()[:5] == ["shape,", "teacher", "torch", "request", "256k"]
    assert line.endswith("–  out of memory: full")


def test_engines_and_devices_are_never_mixed(rows: list[EfficiencyRow]) -> None:
    other = [row("teacher", 512, device="CPU", ttft_ms=spread(1.0)), row("alone", 512, engine="vllm")]
    assert [(each.engine, each.device) for each in settings([*other, *rows])] == [
        ("torch", "GPU"),
        ("torch", "CPU"),
        ("vllm", "GPU"),
    ]
    assert [pair.setting.device for pair in pairings([*other, *rows])] == ["GPU"]


def test_known_teachers_replace_stated_ones(rows: list[EfficiencyRow]) -> None:
    alone = [replace(each, teacher=None) for each in rows]
    assert list(pairings(alone)) == []
    (pair,) = pairings(alone, {"student+softmax/4": "teacher"})
    assert (pair.student.weights_id, pair.teacher.weights_id) == ("student+softmax/4", "teacher")


def test_families_are_a_teacher_and_its_students(rows: list[EfficiencyRow]) -> None:
    others = [row("second", 512, teacher="absent"), row("third", 512, teacher=None)]
    found = families([*rows, *others])
    assert [{each.weights_id for each in family} for family in found] == [
        {"teacher", "student+softmax/4"},
        {"second"},
        {"third"},
    ]


def test_synthetic_caches_are_compared_with_real_ones() -> None:
    rows = [
        row("teacher", 2048, step_ms=spread(2.0)),
        row("teacher", 2048, kind="decode", step_ms=spread(2.08)),
        row("teacher", 4096, kind="decode", step_ms=spread(9.0)),
    ]
    assert synthetic_deviation(rows, "teacher") == pytest.approx(0.04)
    assert synthetic_deviation(rows[1:], "teacher") is None
    assert "differs by" not in efficiency_text(rows)
    slow = [*rows[:1], row("teacher", 2048, kind="decode", step_ms=spread(2.2))]
    assert "shape, teacher: a decode step with a synthetic cache differs by 10 %" in efficiency_text(slow)


def test_tables_hold_every_measurement(rows: list[EfficiencyRow]) -> None:
    cells = EFFICIENCY.of(rows).cells(ALONE)
    assert len(cells) == len(rows)
    assert (cells[0]["ttft_ms"], cells[0]["ttft_ms_high"]) == pytest.approx(
        (512**2 / 4000, 512**2 / 4000 * 1.1)
    )
    crossings = CROSSOVERS.of(ratio_rows(rows)).cells(ALONE)
    assert len(crossings) == 3 * len(CONTEXTS)
    assert crossings[0]["crossover"] == pytest.approx(4000)
    assert crossings[0]["ratio_low"] < crossings[0]["ratio"] < crossings[0]["ratio_high"]
    assert EFFICIENCY.of([]).csv(ALONE) == ""
    assert efficiency_text([]) == "no measurements"


def test_a_front_is_not_beaten() -> None:
    points = [(1.0, 50.0), (2.0, 60.0), (2.0, 40.0), (3.0, 55.0), (4.0, 70.0)]
    assert pareto_front(points, less_is_better=True) == [(1.0, 50.0), (2.0, 60.0), (4.0, 70.0)]
    assert pareto_front(points, less_is_better=False) == [(4.0, 70.0)]


def test_papers_stand_next_to_our_hybrids(rows: list[EfficiencyRow]) -> None:
    at_32k = next(row for row in paper_rows(rows) if row.stated.statement.startswith("1.9 to 2.5"))
    ratio = (1 + 4 * 32.768) / 4 / (5 / 4)
    assert at_32k.ours == f"shape, student+softmax/4: {ratio:.3g}×"
    assert {each.context for each in paper_ratios()} == {512, 2048, 32768, 131072}
    assert all(each.low is None or each.low <= each.high for each in paper_ratios())


def test_engines_stand_side_by_side(rows: list[EfficiencyRow]) -> None:
    other = row("teacher", 2048, engine="transformers", ttft_ms=spread(5.0), step_ms=spread(20.0))
    table = engine_table([*rows, other], "torch")
    assert table is not None
    (cells,) = ([column.text(ALONE, row) for column in table.columns] for row in table.rows(ALONE))
    assert [column.header for column in table.columns][2::2] == [
        "torch, first token ms",
        "transformers, first token ms",
    ]
    assert cells == ["shape, teacher", "2k", f"{2048**2 / 4000:,.1f}", "–", "5.0", "50"]
    crossovers = crossover_table(rows)
    assert crossovers is not None
    assert [crossovers.columns[1].text(ALONE, pair) for pair in crossovers.rows(ALONE)] == [
        "from 4,000 (3,273 to 4,889)"
    ]


def test_many_models_are_small_multiples() -> None:
    rows = [row(f"model-{i}", n, ttft_ms=spread(n)) for i in range(10) for n in (512, 1024)]
    titles = [each.title for each in efficiency_charts(rows) if "first token" in each.title]
    assert titles == [f"Time to first token by context: {i} of 2" for i in (1, 2)]

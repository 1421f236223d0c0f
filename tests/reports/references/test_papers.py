"""Tables of the four papers: each loads, names our benchmarks, and agrees with what other tables print."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from evalsuite.reports.references.papers import (
    BENCHMARKS,
    CITATIONS,
    FOLDER,
    MEANS,
    TABLE_MEANS,
    PaperScore,
    paper_scores,
)
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark

TABLES = {
    "linearizing_2025": {"Table 3": 84, "Table 4": 96, "Table 5": 216, "Table 6": 112, "Table 7": 180},
    "kd_nine_2025": {"Table 2": 147, "Table 3": 105, "Appendix B": 41},
    "gendistill_2026": {
        **{"Table 1": 22, "Table 2": 55, "Table 3": 49, "Table 4": 42, "Table 6": 24, "Table 12": 35},
        **{"Table 13": 60, "Table 14": 24, "Table 15": 84, "Table 16": 116, "Table 17": 154},
        **{"Table 18": 377, "Table 19": 39, "Table 20": 35, "Table 21": 90},
    },
    "kl_guided_2026": {
        **{"Table 2": 28, "Table 4": 116, "Table 5": 112, "Table 6": 112, "Table 7": 112},
        "Figure 4": 16,
    },
}
"""Paper → table → printed scores."""
PRINTED = {
    ("linearizing_2025", "Table 4"): "linearizing_2025/table4_instruction.csv",
    ("linearizing_2025", "Table 6"): "linearizing_2025/table6_post_training.csv",
    ("linearizing_2025", "Table 7"): "linearizing_2025/table7_niah_instruct.csv",
    ("kd_nine_2025", "Table 2"): "kd_subquadratic_2025/table2_matrix_mixing.csv",
    ("kd_nine_2025", "Table 3"): "kd_subquadratic_2025/table3_alignment.csv",
    ("gendistill_2026", "Table 4"): "gendistill_2026/table4_datasets.csv",
    ("gendistill_2026", "Table 17"): "gendistill_2026/table17_stage_mixing.csv",
    ("kl_guided_2026", "Table 4"): "kl_selection_2026/table4_ruler.csv",
    ("kl_guided_2026", "Table 7"): "kl_selection_2026/table7_squad.csv",
}


def table(source: str, name: str) -> list[PaperScore]:
    return [figure for figure in paper_scores() if (figure.source, figure.table) == (source, name)]


def by_model(figures: list[PaperScore]) -> dict[tuple[str, str], dict[str, float]]:
    """(model, teacher) → benchmark → score."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for figure in figures:
        found.setdefault((figure.model, figure.teacher), {})[figure.benchmark] = figure.value
    return found


@pytest.mark.parametrize("source", TABLES)
def test_each_table_loads_complete(source: str) -> None:
    assert set(TABLES) == set(CITATIONS) == {path.stem for path in FOLDER.glob("*_20*.csv")}
    assert Counter(f.table for f in paper_scores() if f.source == source) == TABLES[source]
    rows = [
        (f.table, f.model, f.scale, f.teacher, f.protocol, f.benchmark, f.context)
        for f in paper_scores()
        if f.source == source and f.benchmark != "Avg"
    ]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(("ours", "theirs"), PRINTED.items())
def test_shipped_scores_are_those_of_the_papers(ours: tuple[str, str], theirs: str) -> None:
    path = Path(__file__).parents[4] / "shared" / "papers" / theirs
    if not path.exists():
        pytest.skip("the papers' tables are not next to this checkout")
    with path.open(newline="") as file:
        printed = sorted(float(row["value"]) for row in csv.DictReader(file) if row["value"])
    assert sorted(figure.value for figure in table(*ours)) == printed


def test_names_map_to_our_benchmarks_and_protocols() -> None:
    known = set(known_benchmarks())
    for names in (*BENCHMARKS.values(), *MEANS.values()):
        assert set(names) <= known
    for figure in paper_scores():
        if figure.benchmark in TABLE_MEANS:
            continue
        names = MEANS.get(figure.benchmark) or BENCHMARKS[figure.benchmark]
        assert any(figure.protocol in load_benchmark(name).protocols for name in names), figure


def test_ruler_mean_is_over_its_13_tasks() -> None:
    assert set(MEANS["RULER"]) == {
        name for name in known_benchmarks() if load_benchmark(name).group == "ruler"
    }


def test_means_of_2504_14366_follow_from_its_tables() -> None:
    """Table 4 averages Table 6 without BEAR; the paper's own exceptions have a note."""
    means = {f.model: f for f in table("linearizing_2025", "Table 4") if f.benchmark == "LLM AVG"}
    agreeing = 0
    for (model, _), scores in by_model(table("linearizing_2025", "Table 6")).items():
        six = [value for name, value in scores.items() if name != "BEAR"]
        if means[model].note:
            continue
        assert means[model].value == pytest.approx(sum(six) / 6, abs=0.0101), model
        agreeing += 1
    assert agreeing >= 12


@pytest.mark.parametrize("name", ["Table 2", "Table 3"])
def test_averages_of_the_nine_students_follow_from_their_tasks(name: str) -> None:
    rows = by_model(table("kd_nine_2025", name))
    assert len(rows) == {"Table 2": 21, "Table 3": 15}[name]
    for scores in rows.values():
        average = scores.pop("Avg")
        assert len(scores) == 6
        assert average == pytest.approx(sum(scores.values()) / 6, abs=0.021)


def test_kl_guided_figure_4_repeats_table_4_for_its_own_mixer() -> None:
    ruler = {f.model: f.value for f in table("kl_guided_2026", "Table 4")}
    checked = 0
    for figure in table("kl_guided_2026", "Figure 4"):
        if figure.model.startswith("GDN"):
            same = figure.model.replace("selected with GDN", "GA-S2")
            assert ruler[same] == figure.value
            checked += 1
    assert checked == 8


def test_sampled_and_greedy_scores_of_table_18() -> None:
    rows = by_model(table("gendistill_2026", "Table 18"))
    teacher = rows["Qwen3-0.6B", "Qwen3-0.6B"]
    assert (teacher["C-Eval"], rows["Qwen3-0.6B, greedy", "Qwen3-0.6B"]["C-Eval"]) == (42.9, 43.5)
    assert teacher["LAMBADA"] > 10  # A perplexity.

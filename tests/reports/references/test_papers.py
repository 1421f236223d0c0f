"""Tables of the four papers: their names are benchmarks of evalsuite."""

from evalsuite.reports.references.papers import (
    BENCHMARKS,
    MEANS,
    TABLE_MEANS,
    paper_scores,
)
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark


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

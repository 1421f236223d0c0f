"""The key figures of the page."""

from pathlib import Path
from types import SimpleNamespace

from evalsuite.reports.page.overview import tiles
from evalsuite.reports.report import build_report


def test_best_recovery_under_generation_is_that_of_informative_benchmarks(
    synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    """The teacher names few letters, which a student exceeds by guessing, and answers the other benchmark."""
    levels = {"t": {"letters": 0.1, "words": 0.8}, "s": {"letters": 0.3, "words": 0.4}}
    run = synthetic.make_run(
        tmp_path / "run",
        [
            synthetic.SyntheticBenchmark("letters", "L", "knowledge", 400),
            synthetic.SyntheticBenchmark("words", "W", "recall", 400, 0.0, protocols=("generation",)),
        ],
        [
            synthetic.SyntheticCheckpoint(
                name,
                lambda b, p, c, level=level: 0.5 if p == "loglikelihood" else level[b],
                "teacher" if name == "t" else "student",
            )
            for name, level in levels.items()
        ],
    )
    report = build_report([run])
    (tile,) = (each for each in tiles(report) if each.text.startswith("best recovery under generation"))
    found = report.average(1, "generation", "informative").recovery.point
    assert found < 0.6 < report.average(1, "generation").recovery.point
    assert tile.figure == f"{100 * found:.1f}"

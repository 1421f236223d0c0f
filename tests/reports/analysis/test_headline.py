"""The headline of pages whose students lack benchmarks."""

from functools import partial
from pathlib import Path

from evalsuite.reports.headline import recovery_sentence
from evalsuite.reports.report import Report, build_report
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import Row, edit_rows


def without(labels: set[str], number: int, row: Row) -> Row | None:
    return None if row["checkpoint"] in labels else row


def make_report(run: Path, lacking: dict[str, dict[str, set[str]]]) -> Report:
    """A run of three benchmarks; `lacking`: benchmark → protocol → the checkpoints without scores there."""
    make_run(
        run,
        [
            SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 100, protocols=("loglikelihood",)),
            SyntheticBenchmark("piqa", "PIQA", "common_sense", 100),
            SyntheticBenchmark("boolq", "BoolQ", "knowledge", 100),
        ],
        {"t": 0.7, "s": 0.6, "better": 0.68},
    )
    for benchmark, protocols in lacking.items():
        for protocol, labels in protocols.items():
            edit_rows(run, benchmark, protocol, partial(without, labels))
    return build_report([run])


def recoveries(report: Report, label: str) -> list[str]:
    (student,) = (i for i in report.students() if report.checkpoints[i].label == label)
    rows = [report.average(student, protocol) for protocol in ("loglikelihood", "generation")]
    points = [row.recovery.point for row in rows if row is not None and row.recovery.point is not None]
    return [f"{100 * point:.1f} % of its teacher" for point in points]


def test_incomplete_students_are_compared_if_they_have_most_benchmarks(tmp_path: Path) -> None:
    nobody, fewer = {"s", "better"}, {"better"}
    lacking = {
        "piqa": {"loglikelihood": nobody, "generation": nobody},
        "boolq": {"loglikelihood": fewer, "generation": fewer},
    }
    report = make_report(tmp_path / "run", lacking)
    chosen, generated = recoveries(report, "s")
    assert recovery_sentence(report) == (
        f"s recovers {chosen} under log-likelihood over 2 of 3 benchmarks and {generated} under generation "
        "over 1 of 2 benchmarks; the others are missing."
    )


def test_a_protocol_that_only_others_were_measured_under_is_named(tmp_path: Path) -> None:
    lacking = {name: {"generation": {"better"}} for name in ("piqa", "boolq")}
    report = make_report(tmp_path / "run", lacking)
    (recovered,) = recoveries(report, "better")
    assert recovery_sentence(report).startswith(f"better recovers {recovered} under log-likelihood")
    assert recovery_sentence(report).endswith("; it was not measured under generation.")
    whole = make_report(tmp_path / "whole", {})
    assert "was not measured" not in recovery_sentence(whole)


def test_an_incomplete_category_gives_way_to_the_informative_benchmarks(tmp_path: Path) -> None:
    def score(label: str, benchmark: str, protocol: str) -> float:
        if benchmark == "boolq" and protocol == "generation":
            return 0.1
        return 0.7 if label == "t" else 0.5

    run = make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark("boolq", "BoolQ", "knowledge", 400),
            *(
                SyntheticBenchmark(name, name, "recall", 400, chance=0.0, protocols=("generation",))
                for name in ("single", "multikey", "words")
            ),
        ],
        [
            SyntheticCheckpoint("t", lambda b, p, c: score("t", b, p), "teacher"),
            SyntheticCheckpoint("s", lambda b, p, c: score("s", b, p)),
        ],
    )
    for name in ("multikey", "words"):
        edit_rows(run, name, "generation", partial(without, {"t", "s"}))
    report = build_report([run])
    gap = report.gap(1)
    generation = report.average(1, "generation", "informative")
    assert gap is not None
    assert gap.teacher_below_chance
    assert generation is not None
    assert generation.benchmarks == ("single",)
    assert recovery_sentence(report).endswith(
        f"; under generation it recovers {100 * generation.recovery.point:.1f} %."
    )
    holes = [each for each in report.warnings if "scores yet" in each]
    assert holes == ["No generation scores yet: multikey; words."]

"""The comparison of agreement by pandas and by the reports."""

from pathlib import Path

import pytest

from evalsuite.reports.studies.leaderboards.agreement_counts import counted, main
from tests.reports.conftest import SyntheticBenchmark, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    benchmarks = [
        SyntheticBenchmark(name, name, "knowledge", 80, protocols=("loglikelihood",)) for name in ("a", "b")
    ]
    models = {"t": 0.7, "s": 0.5}
    return make_run(tmp_path_factory.mktemp("run"), benchmarks, models)


def test_equal_counts_exit_with_0(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--benchmarks", "a", "b"]) == 0
    agreement, retained = (100 * value for value in counted(run, ["a", "b"])["s"])
    line = capsys.readouterr().out.strip()
    assert line == f"s: agreement {agreement:.2f}, retained {retained:.2f}"
    assert (
        main([str(run), "--benchmarks", "a", "b", "--expect", "s", f"{agreement:.2f}", f"{retained:.2f}"])
        == 0
    )


def test_another_expectation_or_student_exits_with_1(run: Path) -> None:
    assert main([str(run), "--benchmarks", "a", "b", "--expect", "s", "1", "2"]) == 1
    assert main([str(run), "--benchmarks", "a", "b", "--expect", "nobody", "1", "2"]) == 1


def test_a_wrong_report_exits_with_1(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import evalsuite.reports.studies.leaderboards.agreement_counts as module

    monkeypatch.setattr(module, "reported", lambda *_: {"s": (0.5, 0.5)})
    assert main([str(run), "--benchmarks", "a", "b"]) == 1
    monkeypatch.setattr(module, "reported", lambda *_: {})
    assert main([str(run), "--benchmarks", "a", "b"]) == 65

"""`evalsuite export` on run folders and logs."""

from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from tests.reports.imports.logs import LmEvalLog, task

RUN = str(Path(__file__).parents[1] / "reports" / "fixtures" / "passing")


def test_export_prints_the_files_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cards"
    assert main(["export", RUN, "--format", "model-card", "--out", str(out)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written
    assert all(path.name == "README.md" and path.is_relative_to(out) and path.is_file() for path in written)


def test_logs_of_another_harness_become_a_card(tmp_path: Path) -> None:
    for model, seed, skill in (("org/big", 1, 9.0), ("org/small", 2, 2.0)):
        LmEvalLog(model, {"arc_easy": task(seed, 300, skill=skill)}).write(tmp_path / "logs")
    out = tmp_path / "out"
    arguments = ["export", str(tmp_path / "logs"), "--teacher", "big", "--format", "model-card"]
    assert main([*arguments, "--out", str(out)]) == 0
    text = (out / "small" / "README.md").read_text()
    assert "ARC-Easy, log-likelihood | 300 |" in text.split("**Lost**")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RUN, "--format", "modelcard"], "unknown exporter 'modelcard'; did you mean 'model-card'"),
        (["nowhere", "--format", "model-card"], "nowhere: not a run folder (no run.json), and no log"),
        ([RUN, "--format", "eval-results"], "the plan names no dataset of the hub"),
    ],
)
def test_refusals(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments, "--out", str(tmp_path / "out")]) >= 64
    assert message in capsys.readouterr().err

"""Logs of other harnesses and exports through the Python interface."""

from pathlib import Path

import pytest

from evalsuite.api import EvalsuiteError, GateConfig, export, gate, import_logs, load_run
from tests.reports.imports.logs import LmEvalLog, task


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for model, seed, skill in (("org/big", 1, 9.0), ("org/small", 2, 2.0)):
        LmEvalLog(model, {"arc_easy": task(seed, 300, skill=skill)}).write(tmp_path / "logs")
    return tmp_path / "logs"


def test_logs_become_runs(logs: Path, tmp_path: Path) -> None:
    runs = import_logs([logs], tmp_path / "imported")
    assert gate(GateConfig(runs=runs, teacher="big", min_recovery=0.9)).exit_code == 1
    assert set(load_run(*runs).samples["checkpoint"]) == {"big", "small"}
    (card,) = export(runs, "model-card", tmp_path / "cards", teacher="big")
    assert card == tmp_path / "cards" / "small" / "README.md"


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvalsuiteError, match=r"no log of .*lm-eval.* is recognised here"):
        import_logs([tmp_path], tmp_path / "imported")
    with pytest.raises(EvalsuiteError, match="unknown importer 'lmeval'"):
        import_logs([tmp_path], tmp_path / "imported", format="lmeval")

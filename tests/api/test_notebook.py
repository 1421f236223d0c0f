"""The notebook of the documentation runs, and is stored without outputs."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path: Path) -> None:
    cells = code_cells(path)
    assert len(cells) > 5
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_first_run_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (each for each in NOTEBOOKS if each.stem == "first-run")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, cell in enumerate(code_cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}, code cell {number + 1}", "exec"), names)
    assert [Path(student).name for student in names["students"]] == ["linear_attention", "gated_deltanet"]
    board: pd.DataFrame = names["run"].leaderboard.query("scope == 'all'")
    assert board["recovery"].dropna().between(0, 1.5).all()
    assert len(board["recovery"].dropna()) == 4
    assert not names["run"].gap.empty
    assert 0 < len(names["lost"]) < len(names["right"])
    assert names["report"].page.is_file()
    assert names["verdict"].exit_code in (0, 1, 2)
    printed = capsys.readouterr().out
    assert "each checkpoint" in printed
    assert f"gate: {names['verdict'].word}" in printed

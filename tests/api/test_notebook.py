"""The notebook of the documentation runs, and holds the outputs of a run."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cells: list[dict[str, Any]]) -> str:
    """Return what cells have printed."""
    return "".join("".join(output.get("text", ())) for cell in cells for output in cell["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_their_outputs(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    # A cell shows what it prints, and the value of its last line unless that is an assignment.
    for cell in cells:
        last = ast.parse("".join(cell["source"])).body[-1]
        assert bool(cell["outputs"]) == isinstance(last, ast.Expr)
    text = json.dumps([cell["outputs"] for cell in cells])
    assert not re.search(r"/(home|root|tmp|work|Users)/|Traceback|Warning", text)


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
    text = capsys.readouterr().out
    assert f"gate: {names['verdict'].word}" in text
    # What does not depend on trained weights is what the stored run printed.
    (start, _, end), (stored, _, last) = (
        each.partition("checkpoints: ") for each in (text, printed(code_cells(path)))
    )
    assert start == stored
    assert end.split(" requests")[0] == last.split(" requests")[0]

"""Rows of the papers' tables at pocket scale: what is repeated, what fails, what is collected."""

import json
from pathlib import Path

import pytest

from evalsuite.foundation import EvalsuiteError
from evalsuite.reports.studies import paper_tables
from evalsuite.reports.studies.paper_tables import Row, coverage, distinct_layers, main

TABLE = "model,origin,role,ARC-E,ARC-C,AVG.\npocket,ours,teacher,25.0,,\nX,printed,teacher,58.6,29.6,44\n"
NAME = "linearizing_2025_table_5.csv"


def once(code: str) -> str:
    """A command for `python -m` that runs `code`."""
    return f'timeit -n 1 -r 1 "import os, shutil; {code}"'


def row(name: str, run: str) -> Row:
    """A row whose commands fail when they are repeated."""
    write = once("shutil.copytree('data', 'page')")
    return Row(name, (), once("os.mkdir('students')"), once(run), write, 1)


def test_a_row_that_fails_is_named_others_go_on_and_nothing_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    (data / "papers").mkdir(parents=True)
    (data / "papers" / NAME).write_text(TABLE)
    (data / "training.csv").write_text("perplexities")
    commands = {
        "2504.14366, 4": "open('data/x').close()",
        "2504.14366, 2 and 5": "os.mkdir('scores')",
        "2603.26556, 10": "pass",
    }
    monkeypatch.setattr(paper_tables, "rows", lambda: [row(*each) for each in commands.items()])
    arguments = ["--data", str(data), "--out", str(out)]
    failed = r"^1 rows failed: 2504\.14366, 4$"
    with pytest.raises(EvalsuiteError, match=failed):
        main(arguments)
    assert "No such file or directory: 'data/x'" in capfd.readouterr().err
    (data / "x").touch()
    with pytest.raises(EvalsuiteError, match=failed):
        main(arguments)
    assert "none of linearizing_2025_table_4 was written" in capfd.readouterr().err
    main([*arguments, "--table", "*, 2 *"])
    assert (out / "tables" / "2504.14366-2-and-5" / NAME).read_text() == TABLE
    assert (out / "tables" / "2603.26556-10" / "training.csv").read_text() == "perplexities"
    assert (out / "rows.csv").read_text().splitlines()[1].startswith('"2504.14366, 2 and 5",')


def test_columns_of_ours_and_benchmarks_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(TABLE)
    columns, printed, missing = coverage(path)
    assert (columns, printed) == (1, 7)
    assert "ARC-E" not in missing
    assert {"ARC-C", "LAMBADA", "BEAR"} <= set(missing)
    assert coverage(tmp_path / "linearizing_2025_table_3.csv")[:2] == (0, 12)
    assert coverage(tmp_path / "linearizing_2025_table_2.csv") == (0, 0, [])


def test_files_of_the_same_layers_are_passed_once(tmp_path: Path) -> None:
    for name, layers in {"a": [0], "b": [1, 2], "c": [0]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"layers": layers}))
    command = "evalsuite distill r --layers a.json b.json c.json --out students"
    assert distinct_layers(command, tmp_path) == command.replace(" c.json", "")

"""`compare` and `gate` select alike, so that a page and a verdict never disagree."""

import json
import shutil
from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from evalsuite.foundation import read_json, write_json

FIXTURES = Path(__file__).parents[1] / "reports" / "fixtures"
OPTIONS = [
    [],
    ["--min-coverage", "0.75"],
    ["--min-coverage", "0.9"],
    ["--errors", "exclude"],
    ["--checkpoint", "student"],
    ["--teacher", "student"],
    ["--teacher", "student", "--min-coverage", "0.75", "--errors", "exclude", "--checkpoint", "teacher"],
]


@pytest.fixture
def partial_run(tmp_path: Path) -> Path:
    """A run in which each checkpoint has 120 of 150 planned documents of one benchmark."""
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "passing", run)
    plan = read_json(run / "run.json")
    for protocol in plan["benchmarks"][0]["protocols"].values():
        protocol["documents"] = 150
    write_json(run / "run.json", plan)
    return run


def verdicts(run: Path, policy: Path, out: Path, options: list[str]) -> tuple[str, str]:
    """gate.json of `compare --policy` and of `gate` with the same options."""
    assert main(["compare", str(run), "--policy", str(policy), "--out", str(out / "page"), *options]) == 0
    code = main(["gate", str(run), "--policy", str(policy), "--out", str(out / "gate"), *options])
    page, gate = ((out / name / "gate.json").read_text() for name in ("page", "gate"))
    assert json.loads(gate)["exit_code"] == code
    return page, gate


@pytest.mark.parametrize(
    ("name", "options"), [*(("partial", each) for each in OPTIONS), ("failing", []), ("failing", OPTIONS[-1])]
)
def test_compare_and_gate_give_the_same_verdict(
    partial_run: Path, tmp_path: Path, name: str, options: list[str]
) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text("rules: [{metric: recovery, min: 0.8}, {metric: gap, max: 20}]")
    run = partial_run if name == "partial" else FIXTURES / name
    page, gate = verdicts(run, policy, tmp_path, options)
    assert page == gate


@pytest.mark.parametrize(
    ("keys", "options", "code"),
    [
        ("", [], 3),
        ("", ["--min-coverage", "0.75"], 0),
        ("", ["--min-coverage", "0.81"], 3),
        ("min_coverage: 0.75", [], 0),
        ("min_coverage: 0.75", ["--min-coverage", "1"], 3),
    ],
)
def test_partial_cells_are_admitted_only_on_request(
    partial_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    keys: str,
    options: list[str],
    code: int,
) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text(f"{keys}\nrules: [{{metric: recovery, min: 0.8}}]")
    page, gate = verdicts(partial_run, policy, tmp_path, options)
    assert page == gate
    assert json.loads(gate)["exit_code"] == code
    text = capsys.readouterr().out
    assert ("Cells with at least 75 % of their planned documents are compared" in text) == (code == 0)
    assert "120 of 150 documents" in text
    html = (tmp_path / "page" / "index.html").read_text()
    label = "Compared on a part of the planned documents: Facts 120 of 150."
    assert (label in html) == (code == 0)


@pytest.mark.parametrize("command", ["compare", "gate"])
def test_invalid_selection_is_refused(command: str, tmp_path: Path) -> None:
    arguments = [command, str(FIXTURES / "passing"), "--out", str(tmp_path / "out")]
    if command == "gate":
        arguments += ["--min-recovery", "0.9"]
    for options in (["--min-coverage", "0"], ["--min-coverage", "2"], ["--errors", "ignore"]):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, *options])
        assert int(stop.value.code or 0) >= 64
    assert main([*arguments, "--checkpoint", "studnet"]) >= 64
    assert main([*arguments, "--teacher", "nobody"]) >= 64

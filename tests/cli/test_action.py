"""action.yml and the workflow to copy: their commands are those of evalsuite, and their steps run."""

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.cli.entry import build_parser
from evalsuite.foundation.strict_yaml import read_yaml

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests/reports/fixtures"
ACTION = read_yaml(ROOT / "action.yml")
WORKFLOW = ROOT / "reports/examples/evalsuite-gate.yml"
STEPS = {step.get("name", step.get("uses")): step for step in ACTION["runs"]["steps"]}
GIVEN = {
    "runs": str(RUNS / "passing"),
    "policy": "gate.yaml",
    "options": "--teacher teacher --errors wrong",
    "out": "verdict",
}


def workflow_steps() -> list[dict[str, Any]]:
    """The steps of the workflow to copy."""
    workflow = yaml.safe_load(WORKFLOW.read_text())
    steps: list[dict[str, Any]] = workflow["jobs"]["gate"]["steps"]
    return steps


def run_step(
    step: Mapping[str, Any], folder: Path, commands: Mapping[str, str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as GitHub does, with commands of our own in front of all others."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, script in commands.items():
        file = folder / "bin" / name
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    stated = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: GIVEN[found[1]], str(value))
        for name, value in step.get("env", {}).items()
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"} | stated | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def called(text: str) -> Sequence[str]:
    """The arguments of an `evalsuite` call that a stand-in recorded, one a line."""
    return text.splitlines()


def test_every_command_of_the_action_is_accepted(tmp_path: Path) -> None:
    recorded = tmp_path / "arguments"
    run_step(
        STEPS["Gate"],
        tmp_path,
        {"evalsuite": f'printf "%s\\n" "$@" > {recorded}'},
        GITHUB_OUTPUT=str(tmp_path / "output"),
    )
    options = build_parser().parse_args(called(recorded.read_text()))
    assert (options.verb, options.runs, options.teacher) == ("gate", [GIVEN["runs"]], "teacher")
    assert (options.policy, options.out) == (Path("gate.yaml"), Path("verdict"))


def test_every_command_of_the_workflow_is_accepted() -> None:
    lines = [line for step in workflow_steps() for line in step.get("run", "").splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("evalsuite ")]
    assert [build_parser().parse_args(command).verb for command in commands] == ["run", "compare"]
    (gate,) = (step for step in workflow_steps() if "/evalsuite@" in step.get("uses", ""))
    assert set(gate["with"]) <= set(ACTION["inputs"])


def test_inputs_and_outputs_are_those_that_are_declared() -> None:
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert ACTION["runs"]["using"] == "composite"
    for step in ACTION["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert step.get("shell") == ("bash" if "run" in step else None)
        # What a pull request can write never becomes part of a script.
        assert "${{" not in step.get("run", "")
    for step in [*ACTION["runs"]["steps"], *workflow_steps()]:
        assert re.search(r"@(v\d+|COMMIT)$", step.get("uses", "@v1"))


@pytest.mark.parametrize(("name", "code"), [("passing", 0), ("failing", 1)])
def test_the_verdict_is_the_outcome_of_the_job(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("rules: [recovery >= 0.9]")
    evalsuite = f'exec {shlex.quote(sys.executable)} -m evalsuite "$@"'
    variables = {
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNS": str(RUNS / name),
    }
    found = run_step(STEPS["Gate"], tmp_path, {"evalsuite": evalsuite}, **variables)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert {each.name for each in (tmp_path / "verdict").iterdir()} == {"junit.xml", "gate.md", "gate.json"}
    assert (tmp_path / "summary.md").read_text() == (tmp_path / "verdict" / "gate.md").read_text()
    assert run_step(STEPS["Verdict"], tmp_path, {}, CODE=str(code)).returncode == code
    assert run_step(STEPS["Verdict"], tmp_path, {}, CODE="").returncode != 0


@pytest.mark.parametrize(("earlier", "method"), [("", "POST"), ("77", "PATCH")])
def test_a_pull_request_has_one_comment(earlier: str, method: str, tmp_path: Path) -> None:
    (tmp_path / "verdict").mkdir()
    (tmp_path / "verdict" / "gate.md").write_text("## Gate: pass\n" + "x" * 100_000)
    gh = f'case "$*" in *--paginate*) echo {earlier};; *) printf "%s " "$@" > called; cat > body;; esac'
    variables = {"GH_TOKEN": "", "REPOSITORY": "o/r", "NUMBER": "5"}
    found = run_step(STEPS["Comment"], tmp_path, {"gh": gh}, **variables)
    assert found.returncode == 0, found.stderr
    place = "repos/o/r/issues/comments/77" if earlier else "repos/o/r/issues/5/comments"
    assert (tmp_path / "called").read_text().startswith(f"api --method {method} {place} ")
    body = (tmp_path / "body").read_text()
    assert body.startswith("## Gate: pass")
    assert len(body) < 65_536

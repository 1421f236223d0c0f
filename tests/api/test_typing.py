"""The package is typed: mypy checks a user's module, outside the checkout, against it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("models", "tasks", "distill", "reports")
PLUGIN = ROOT / "tests" / "plugin" / "package" / "evalsuite_example"
CONFIG = """[mypy]
strict = True
[mypy-evalsuite.*]
follow_imports = silent
[mypy-torch.*,transformers.*,tokenizers.*,datasets.*,safetensors.*,gguf.*,lm_eval.*,evalscope.*,fla.*,scipy.*,pyarrow.*]
follow_imports = skip
ignore_missing_imports = True
"""
USER = """
from pathlib import Path

from evalsuite.api import (
    CompareConfig, EvalsuiteError, GateConfig, RunConfig, compare, distill, estimate, evaluate, gate,
    load_run, read_run_config,
)
from evalsuite.executors import EXECUTORS
from evalsuite.models.engines import ENGINES
from evalsuite.models.mixers import MIXERS
from evalsuite.protocols.scorers import SCORERS, Scorer, ScorerOutput


def study(folder: Path) -> float:
    students: list[str] = distill("pocket", folder / "students", mixers=["kda"], overrides=["seed=1"])
    out = folder / "run"
    config = RunConfig(suite="pocket-quick", teacher="pocket", checkpoints=students, out=out, limit=3)
    print(estimate(config).time)
    summary = evaluate(config)
    print(summary.missing, summary.seconds["score"])
    try:
        page: Path = compare(CompareConfig(inputs=[out], out=folder / "report", min_coverage=0.9)).page
    except EvalsuiteError as error:
        raise SystemExit(error.exit_code) from error
    verdict = gate(GateConfig(runs=[folder / "run"], min_recovery=0.9, max_gap=5))
    print(page, verdict.word, verdict.exit_code + 1, read_run_config("run.yaml", limit=3).limit)
    run = load_run(folder / "run", checkpoints=["kda"])
    reveal_type(run.leaderboard)
    reveal_type(SCORERS["pocket"])
    reveal_type(evaluate(config))
    print(run.manifests[0].checkpoints[0].label, list(MIXERS), list(ENGINES), list(EXECUTORS))
    SCORERS.add("mine", Scorer(lambda row, response: ScorerOutput({"accuracy": 1.0}, response, "")))
    return float(run.scores["score"].mean())
"""
WRONG = {
    'RunConfig(out="o", limt=3)': 'Unexpected keyword argument "limt" for "RunConfig"',
    'RunConfig(out="o", limit="three")': 'Argument "limit" to "RunConfig" has incompatible type "str"',
    'RunConfig(out="o", phases=["infr"])': "has incompatible type \"Literal['infr']\"",
    'GateConfig(runs=["r"], errors="ignore")': 'Argument "errors" to "GateConfig" has incompatible type',
    'load_run("r").leaderbord': '"Run" has no attribute "leaderbord"',
    'evaluate("quick")': 'Argument 1 to "evaluate" has incompatible type "str"',
}
"""Mistake → what mypy says about it."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which evalsuite lies as in site-packages."""
    package = tmp_path_factory.mktemp("installed") / "evalsuite"
    package.mkdir()
    for path in (ROOT / "evalsuite").iterdir():
        (package / path.name).symlink_to(path)
    for room in ROOMS:
        (package / room).symlink_to(ROOT / room)
    assert (package / "py.typed").is_file()
    return package.parent


def check(installed: Path, folder: Path, *targets: str) -> str:
    """Return what mypy prints about files in a folder."""
    (folder / "mypy.ini").write_text(CONFIG)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        str(installed / "cache"),
    ]
    done = subprocess.run(
        [*command, *targets],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode < 2, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_users_module_is_checked(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(USER)
    lines = ["from evalsuite.api import *\n", *(f"{code}\n" for code in WRONG)]
    (tmp_path / "wrong.py").write_text("".join(lines))
    out = check(installed, tmp_path, "study.py", "wrong.py")
    notes = re.findall(r'study\.py.*Revealed type is "(.*)"', out)
    assert [note.rsplit(".", 1)[-1] for note in notes] == ["DataFrame", "Scorer", "Summary"]
    errors = [line for line in out.splitlines() if ": error: " in line]
    assert len(errors) == len(WRONG), out
    for number, message in enumerate(WRONG.values(), 2):
        (found,) = (line for line in errors if line.startswith(f"wrong.py:{number}: "))
        assert message in found


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_plugin_is_checked(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "evalsuite_example").symlink_to(PLUGIN)
    out = check(installed, tmp_path, "-p", "evalsuite_example")
    files = len(list(PLUGIN.rglob("*.py")))
    assert f"Success: no issues found in {files} source files" in out

"""The Python interface on finished runs: tables, verdicts, refusals, and what it imports."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.api import CompareConfig, GateConfig, RunConfig, compare, distill, gate, load_run
from evalsuite.cli.entry import build_parser, main
from evalsuite.config import flag_of
from evalsuite.foundation import ConfigError, EvalsuiteError, RunFolderError
from tests.reports.score_edits import all_rows

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "reports" / "fixtures"
HEAVY = ("torch", "transformers", "tokenizers", "datasets", "lm_eval", "evalscope")


def test_tables_equal_what_compare_writes(tmp_path: Path) -> None:
    run = load_run(FIXTURES / "failing")
    written = compare(CompareConfig(inputs=[FIXTURES / "failing"], out=tmp_path)).folder
    for name, table in (("leaderboard", run.leaderboard), ("scores", run.scores), ("gap", run.gap)):
        read = pd.read_csv(written / f"{name}.csv", float_precision="round_trip")
        assert list(table.columns) == list(read.columns)
        assert len(table) == len(read) > 0
        for column in ("score", "recovery", "gap"):
            if column in read:
                assert table[column].astype(float).equals(read[column].astype(float))
    assert set(run.leaderboard["label"]) == {"teacher", "student"}


def test_samples_are_the_score_rows() -> None:
    run = load_run(FIXTURES / "failing")
    for (benchmark, protocol), part in run.samples.groupby(["benchmark", "protocol"]):
        rows = all_rows(FIXTURES / "failing", str(benchmark), str(protocol))
        assert len(part) == len(rows)
        assert sorted(part["doc_id"]) == sorted(row["doc_id"] for row in rows)
        metric = run.manifests[0].benchmarks[0].protocols[protocol].metric
        if all(metric in row["values"] for row in rows):
            assert part[f"value.{metric}"].sum() == sum(row["values"][metric] for row in rows)
    assert set(run.samples["checkpoint"]) == {"teacher", "student"}


def test_a_selection_applies_to_the_tables() -> None:
    run = load_run(FIXTURES / "failing", teacher="student")
    assert set(run.leaderboard.loc[run.leaderboard["role"] != "teacher", "teacher"]) <= {"student"}
    with pytest.raises(ConfigError, match="studnet"):
        _ = load_run(FIXTURES / "failing", checkpoints=["studnet"]).leaderboard


def test_gate_writes_only_where_it_is_told(tmp_path: Path) -> None:
    before = sorted((FIXTURES / "failing").rglob("*"))
    verdict = gate(GateConfig(runs=[FIXTURES / "failing"], min_recovery=0.9))
    assert verdict.exit_code == main(["gate", str(FIXTURES / "failing"), "--min-recovery", "0.9"]) == 1
    assert sorted((FIXTURES / "failing").rglob("*")) == before
    gate(GateConfig(runs=[FIXTURES / "failing"], min_recovery=0.9, out=tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"junit.xml", "gate.md", "gate.json"}


def refused(call: Any, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(EvalsuiteError) as caught:
        call(*arguments, **settings)
    assert caught.value.exit_code >= 64
    return str(caught.value)


RUN = str(FIXTURES / "passing")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suite": "quick"}, "'suite' (--suite) has no effect on run folders"),
        ({"limit": 3}, "'limit' (--limit) has no effect on run folders"),
        ({"device": "cpu"}, "'device' (--device) has no effect on run folders"),
        ({"dtype": "float32"}, "'dtype' (--dtype) has no effect on run folders"),
        ({"trust_remote_code": True}, "'trust_remote_code' (--trust-remote-code) has no effect"),
        ({"redact": True, "questions": True}, "pass either it or --questions"),
        ({"redact": True, "data": "d"}, "--redact omits question texts, the only use of --data here"),
        ({"min_coverage": 1.5}, "min_coverage = 1.5"),
        ({"inputs": [RUN, "./student"]}, "./student: not a run folder"),
        ({"inputs": ["./student"]}, "to evaluate a checkpoint, pass --suite"),
        ({"inputs": []}, "nothing to compare"),
        ({"inputs": RUN}, "give a list"),
    ],
)
def test_comparisons_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    assert message in refused(CompareConfig, **{"inputs": [RUN], "out": "o"} | settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "pass either --policy FILE, or --min-recovery"),
        ({"policy": "gate.yaml", "max_gap": 3}, "pass either --policy FILE, or --min-recovery"),
        ({"runs": [], "max_gap": 3}, "no runs given"),
        ({"max_gap": 3, "min_coverage": 0}, "min_coverage = 0"),
    ],
)
def test_gates_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    assert message in refused(GateConfig, **{"runs": [RUN]} | settings)


@pytest.mark.parametrize(("command", "kind"), [("compare", CompareConfig), ("gate", GateConfig)])
def test_every_setting_has_a_flag(command: str, kind: Any) -> None:
    actions = build_parser()._subparsers._group_actions[0].choices[command].completed()._actions  # type: ignore[union-attr]
    known = {option for action in actions for option in (*action.option_strings, action.dest)}
    for each in fields(kind):
        if each.name == "bounds":  # options of other packages
            continue
        assert each.name in known, each.name
        assert flag_of(each) in known or each.name in ("inputs", "runs", "checkpoints")


def test_runs_that_are_none_are_refused(tmp_path: Path) -> None:
    assert "not a run folder (no run.json)" in refused(load_run, tmp_path)
    assert "no run folder given" in refused(load_run)
    with pytest.raises(RunFolderError):
        load_run(tmp_path)


def test_overrides_belong_to_a_recipe_by_name() -> None:
    from evalsuite.distill import load_recipe

    message = refused(distill, load_recipe("pocket"), "o", overrides=["seed=1"])
    assert "overrides apply to a recipe's name or file" in message


def test_the_base_install_has_no_torch(tmp_path: Path) -> None:
    """`load_run`, `compare` and `gate` work where the packages of the extras are missing."""
    code = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None
from evalsuite.api import *
run = load_run({RUN!r})
assert len(run.samples) and len(run.scores) and len(run.leaderboard) and len(run.gap)
assert gate(GateConfig(runs=[{RUN!r}], max_gap=50)).exit_code == 0
assert compare(CompareConfig(inputs=[{RUN!r}], out={str(tmp_path / "out")!r})).page.is_file()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_missing_package_names_its_extra(tmp_path: Path) -> None:
    code = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None
from evalsuite.api import *
for call, extra in (
    (lambda: distill("pocket", "students"), "distill"),
    (lambda: evaluate(RunConfig(suite="pocket", teacher="pocket", out="run")), "eval"),
    (lambda: estimate(RunConfig(suite="pocket", teacher="pocket", out="run")), "eval"),
    (lambda: compare(CompareConfig(inputs=["pocket"], suite="pocket", out="out")), "eval"),
):
    try:
        call()
    except EvalsuiteError as error:
        assert f"pip install 'evalsuite[{{extra}}]'" in str(error), error
    else:
        raise AssertionError(extra)
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )


def test_importing_it_is_light() -> None:
    code = f"import sys, evalsuite.api; assert not {{'pandas', *{HEAVY!r}}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_run_config_names_what_it_needs() -> None:
    with pytest.raises(TypeError, match="out"):
        RunConfig()  # type: ignore[call-arg]

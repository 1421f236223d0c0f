"""Named benchmarks of an unfinished run, and a limit on the documents that errors exclude."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, policy_from_options, run_gate
from tests.reports.conftest import SyntheticBenchmark, make_run
from tests.reports.score_edits import edit_rows

NAMES = ("facts", "logic", "maths")
Row = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made: Path = make_run(
        tmp_path / "run",
        [
            SyntheticBenchmark(name, name.title(), "knowledge", 200, protocols=("loglikelihood",))
            for name in NAMES
        ],
        {"t": 0.8, "s": 0.8},
        rho=0.99,
    )
    return made


@pytest.fixture
def unfinished(run: Path) -> Path:
    """The run without scores of `maths`."""
    edit_rows(run, "maths", "loglikelihood", lambda i, row: None)
    return run


def test_an_unfinished_run_is_gated_by_name(unfinished: Path) -> None:
    whole = run_gate([unfinished], policy_from_options(min_recovery=0.9))
    assert whole.exit_code == 3
    assert "To gate what it has: --benchmark facts logic" in whole.text
    part = run_gate(
        [unfinished], policy_from_options(min_recovery=0.9).with_options(benchmarks=["facts", "logic"])
    )
    assert part.exit_code == 0
    assert part.results[0].documents == 400
    assert "Only 2 of 3 benchmarks are gated; left out by name: maths." in part.warnings
    assert "To gate what it has" not in part.text


def test_the_command_line_names_benchmarks_of_runs(
    unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", str(unfinished), "--min-recovery", "0.9", "--benchmark", "facts", "logic"]) == 0
    assert "left out by name: maths" in capsys.readouterr().out
    options = ["--run-spread", "8", "--over", "runs", "--benchmark", "facts", "logic"]
    assert main(["gate", str(unfinished), "--min-recovery", "0.9", *options]) == 2
    assert "(8.0 points between runs)" in capsys.readouterr().out
    assert main(["gate", str(unfinished), "--min-recovery", "0.9", "--run-spread", "nan"]) == 64
    assert "--run-spread: 'run_spread' = nan" in capsys.readouterr().err
    assert main(["gate", str(unfinished), "--min-recovery", "0.9", "--benchmark", "fact"]) == 64
    assert "no run has a benchmark 'fact' to gate; did you mean 'facts'" in capsys.readouterr().err


def test_a_rule_on_a_benchmark_that_is_left_out_is_refused() -> None:
    rule = {"metric": "recovery", "min": 0.9, "benchmark": "maths"}
    with pytest.raises(ConfigError, match="a rule is about 'maths', which 'benchmarks' leaves out"):
        parse({"rules": [rule], "benchmarks": ["facts"]}, Policy, "policy")


def failing(rows: int) -> Any:
    """Turn the first wrong responses of the student into errors."""

    def change(i: int, row: Row) -> Row:
        if row["checkpoint"] == "s" and i <= rows:
            return row | {"outcome": "error", "values": {}}
        return row

    return change


@pytest.mark.parametrize(
    "rule",
    [
        {"metric": "recovery", "min": 0.9},
        {"metric": "drop", "max": 5},
        {"metric": "agreement", "min": 0.5},
        {"metric": "score", "min": 0.5},
    ],
)
def test_errors_exclude_few_documents(run: Path, rule: dict[str, Any]) -> None:
    policy = parse({"rules": [rule], "errors": "exclude"}, Policy, "policy")
    edit_rows(run, "facts", "loglikelihood", failing(10))
    assert run_gate([run], policy).results[0].outcome == "pass"
    edit_rows(run, "facts", "loglikelihood", failing(14))
    verdict = run_gate([run], policy)
    assert verdict.exit_code == 3
    why = "errors: exclude leaves out 2.3 % of the documents (facts), more than max_excluded, 2.0 %"
    assert verdict.results[0].why.startswith(why)
    assert run_gate([run], policy.with_options(max_excluded=0.05)).results[0].outcome == "pass"

"""Policies of the documentation and of `reports/examples`: a student that cannot generate does not pass."""

import re
from pathlib import Path

import pytest
import yaml

from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, load_policy, policy_from_options, run_gate
from evalsuite.reports.gate.verdict import ONLY_LOGLIKELIHOOD
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

ROOT = Path(__file__).parents[3]


def documented() -> Policy:
    """The policy of the how-to."""
    block = re.search(
        r"```yaml title=\"gate\.yaml\"\n(.*?)```", (ROOT / "docs/how-to/gate.md").read_text(), re.S
    )
    assert block is not None
    return parse(yaml.safe_load(block[1]), Policy, "docs/how-to/gate.md")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's `gated_deltanet`: 81 % of its teacher by log-likelihood, 28.6 % under generation."""
    made: Path = make_run(
        tmp_path_factory.mktemp("demo") / "run",
        [
            SyntheticBenchmark("facts", "Facts", "knowledge", 150),
            SyntheticBenchmark("needles", "Needles", "recall", 150),
        ],
        [
            SyntheticCheckpoint("pocket", lambda *_: 0.999, "teacher"),
            SyntheticCheckpoint(
                "gated_deltanet", lambda _, protocol, __: 0.95 if protocol == "loglikelihood" else 0.286
            ),
        ],
    )
    return made


@pytest.mark.parametrize(
    "policy",
    [
        documented(),
        load_policy(ROOT / "reports" / "examples" / "gate.yaml"),
        policy_from_options(min_recovery=0.9),
    ],
    ids=["how-to", "example", "--min-recovery"],
)
def test_a_student_that_cannot_generate_fails(run: Path, policy: Policy) -> None:
    verdict = run_gate([run], policy)
    assert verdict.exit_code == 1
    failing = {(each.metric, each.protocol) for each in verdict.results if each.outcome == "regression"}
    assert ("recovery", "generation") in failing
    assert ("recovery", "loglikelihood") not in failing
    assert ONLY_LOGLIKELIHOOD not in verdict.warnings


def test_a_policy_without_generation_says_so(run: Path) -> None:
    rule = {"metric": "recovery", "min": 0.7, "protocol": "loglikelihood"}
    verdict = run_gate([run], parse({"rules": [rule]}, Policy, "policy"))
    assert verdict.exit_code == 0
    assert verdict.warnings[-1] == ONLY_LOGLIKELIHOOD

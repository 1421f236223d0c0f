"""Rules on inference cost: text or keys, at a context, decided by the range of the repeats."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, run_gate
from evalsuite.reports.gate.policy import PolicyRule
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def policy(*rules: Any) -> Policy:
    return parse({"rules": list(rules)}, Policy, "policy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose student needs half of its teacher's time at 32k, and 2 GB."""
    checkpoints = [
        SyntheticCheckpoint("teacher", lambda *_: 0.8, "teacher"),
        SyntheticCheckpoint("student", lambda *_: 0.7),
    ]
    benchmarks = [SyntheticBenchmark("facts", "facts", "knowledge", 50)]
    made: Path = make_run(tmp_path_factory.mktemp("run"), benchmarks, checkpoints)
    lines = []
    for number, checkpoint in enumerate(checkpoints):
        for kind, batch in (("request", 1), ("decode", 4)):
            median = 2.0 - number
            spread = {"median": median, "low": 0.95 * median, "high": 1.05 * median, "repeats": 3}
            lines.append(
                {
                    "schema": 2,
                    "label": checkpoint.label,
                    "weights_id": checkpoint.weights_id,
                    "engine": "torch",
                    "device": "GPU",
                    "dtype": "bfloat16",
                    "parameters": 1,
                    "kind": kind,
                    "context": 32768,
                    "batch": batch,
                    "status": "ok",
                    "step_ms": spread,
                    "ttft_ms": spread if kind == "request" else None,
                    "peak_bytes": 2 * 10**9,
                }
            )
        lines.append(
            lines[-2] | {"context": 131072, "status": "out_of_memory", "step_ms": None, "ttft_ms": None}
        )
    (made / "efficiency.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


@pytest.mark.parametrize(
    ("rule", "outcome", "sentence"),
    [
        ("decode_ratio@32k >= 1.5", "pass", "2.00 × (1.82 to 2.20), required at least 1.50 ×"),
        ("prefill_ratio@32k >= 2.5", "regression", "required at least 2.50 ×: misses it by 0.50 ×"),
        ("peak_throughput_ratio@32k >= 2.1", "inconclusive", "within the range of the repeats"),
        ("ttft_ms@32k <= 1.2", "pass", "1.0 ms (1.0 to 1.0), required at most 1.2 ms"),
        ("ttft_ms@32768 <= 0.9", "regression", "misses it by 0.1 ms"),
        ("peak_gb@32k <= 2", "pass", "2.0 GB (2.0 to 2.0), required at most 2.0 GB"),
        ("peak_gb@32k <= 1.5", "regression", "misses it by 0.5 GB"),
        (
            "peak_gb@128k <= 80",
            "unmeasured",
            r"no peak memory, one sequence of 'student' at 131,072 tokens (student: out of memory): repeat",
        ),
        (
            "decode_ratio@8k >= 1",
            "unmeasured",
            "of 'student' and 'teacher' at 8,192 tokens: repeat `evalsuite bench`",
        ),
    ],
)
def test_rules_are_decided_by_the_repeats(run: Path, rule: str, outcome: str, sentence: str) -> None:
    (result,) = run_gate([run], policy(rule)).results
    assert result.outcome == outcome
    assert sentence in result.sentence


def test_a_rule_has_a_name(run: Path) -> None:
    (result,) = run_gate([run], policy("peak_gb@32k <= 2")).results
    assert result.name == "peak gb at 32,768 tokens"


def test_text_and_keys_are_the_same_rule() -> None:
    (text, keys, recovery) = policy(
        "ttft_ms@8k <= 200",
        {"metric": "ttft_ms", "max": 200, "context": 8192},
        "recovery >= 0.9",
    ).rules
    assert text == keys
    assert recovery == PolicyRule(metric="recovery", min=0.9)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("decode_ratio >= 1.5", "decode_ratio needs a context and no benchmark, as in decode_ratio@32k"),
        ({"metric": "ttft_ms", "max": 1, "context": 8, "benchmark": "a"}, "needs a context and no benchmark"),
        ("decode_ratio@32k <= 1.5", "decode_ratio takes 'min', and only that"),
        ("decode_ratio@32k is 1.5", "is no rule, such as"),
        ("decode_ratoi@32k >= 1.5", "'decode_ratoi': unknown metric; did you mean 'decode_ratio'"),
        ("recovery@32k >= 0.9", "'context' needs a 'benchmark'"),
        ("ttft_ms@8k <= -1", "in milliseconds"),
    ],
)
def test_mistakes_are_refused(rule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(rule)

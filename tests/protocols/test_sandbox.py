"""Code that a model wrote runs within limits, and only when it is requested."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.sandbox import ALLOW, run_limited
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import with_ids

ROW = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Return twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
    "entry_point": "double",
}


def test_sandbox_program_passes() -> None:
    assert run_limited("import math, re, collections, typing, heapq\nassert math.gcd(4, 6) == 2").passed


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("assert 1 == 2", "AssertionError"),
        ("x = [0] * 10**10", "MemoryError"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "socket"),
        ("import subprocess; subprocess.run(['true'])", "not allowed"),
        ("import os; os.system('true')", "os.system is not allowed"),
        ("import os; os.kill(os.getppid(), 9)", "os.kill is not allowed"),
        ("open('/tmp/evalsuite-escaped', 'w')", "outside the working folder"),
        ("import os; os.remove('/etc/hostname')", "os.remove outside"),
        ("import shutil; shutil.rmtree('/')", "outside"),
        ("open('big', 'wb').write(b'x' * 10**7)", "File too large"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)
def test_sandbox_refuses(program: str, message: str) -> None:
    outcome = run_limited(program)
    assert not outcome.passed
    assert message in outcome.message
    assert not Path("/tmp/evalsuite-escaped").exists()


def test_sandbox_timeout() -> None:
    assert "took longer" in run_limited("while True: pass", seconds=0.5).message


def test_sandbox_allows_files_in_its_folder() -> None:
    assert run_limited("open('a', 'w').write('x')\nimport os\nos.remove('a')").passed


def generated(text: str) -> GenerateResponse:
    return GenerateResponse((1, 2), text, "eos")


def test_humaneval_needs_consent(monkeypatch: Any) -> None:
    found = with_ids([(ROW, None)])
    monkeypatch.delenv(ALLOW, raising=False)
    with pytest.raises(ConfigError, match=f"executes generated code.*{ALLOW}=1"):
        GenerationBenchmark(load_benchmark("humaneval"), found).score(0, generated("    return 2 * x\n"))
    monkeypatch.setenv(ALLOW, "1")
    humaneval = GenerationBenchmark(load_benchmark("humaneval"), found)
    right = humaneval.score(0, generated("```python\ndef double(x):\n    return x + x\n```"))
    assert right.values == {"acc": 1.0}
    assert humaneval.score(0, generated("    return 2 * x\n")).values == {"acc": 1.0}
    wrong = humaneval.score(0, generated("    return x\n"))
    assert (wrong.values, wrong.outcome) == ({"acc": 0.0}, "ok")

"""The benchmark of first words measures whole processes and refuses those that fail; no time is tested."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError
from tests.performance import bench_startup as benchmark
from tests.performance.bench_startup import Command

HELP = Command(("--help",), "argparse", max_ratio=1e9)


def test_a_ratio_above_its_bound_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = replace(HELP, max_ratio=1e-3)
    monkeypatch.setattr(benchmark, "commands", lambda *_: {"fast": HELP, "slow": slow})
    arguments = ["--run", "run", "--checkpoint", "pocket", "--repeats", "1", "--out", str(tmp_path)]
    assert benchmark.main(arguments) == 1
    found = json.loads((tmp_path / "startup.json").read_text())["commands"]
    assert list(found) == ["fast", "slow"]
    assert all(0 < row["peer_seconds"] < row["seconds"] for row in found.values())
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr(benchmark, "commands", lambda *_: {"fast": HELP})
    assert benchmark.main(arguments) == 0


def test_a_command_that_fails_has_no_time(tmp_path: Path) -> None:
    gate = benchmark.commands(tmp_path / "missing", benchmark.DEFAULT_POLICY, "pocket")["gate"]
    with pytest.raises(ConfigError, match=r"gate .*missing .* ended with \d\d: .*missing"):
        benchmark.measure(gate, repeats=1)
    with pytest.raises(ConfigError, match=r"ended with 1: .*no_such_module"):
        benchmark.seconds([sys.executable, "-c", "import no_such_module"])


def test_every_command_of_the_benchmark_is_one() -> None:
    from evalsuite.cli.entry import build_parser

    for command in benchmark.commands(Path("run"), Path("policy.yaml"), "model.gguf").values():
        if command.arguments != ("--help",):
            build_parser().parse_args(command.arguments)

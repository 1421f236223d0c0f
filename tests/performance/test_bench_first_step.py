"""The benchmark of first steps stops a real distillation, and names one that fails; no time is tested."""

import json
from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError
from tests.performance import bench_first_step as benchmark
from tests.performance.bench_first_step import ROOT, Span, spans


@pytest.mark.long
def test_a_distillation_is_stopped_after_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench"
    assert benchmark.main(["--out", str(out), "pocket", "--mixer", "gla", "--device", "cpu"]) == 0
    found = json.loads((out / "first_step.json").read_text())
    assert (out / "run" / "metrics.jsonl").stat().st_size
    assert not (out / "run" / "gla").exists()
    assert found["command"] == ["pocket", "--mixer", "gla", "--device", "cpu"]
    # Samples cover the process from its first moments to its first step.
    assert sum(length for _, _, length in found["spans"]) > found["seconds"] / 2
    assert any(function.startswith("distill") for function, _, _ in found["spans"])
    assert capsys.readouterr().out.startswith(f"first step after {found['seconds']:.1f} s")
    with pytest.raises(ConfigError, match="bench exists"):
        benchmark.main(["--out", str(out), "pocket"])


def test_a_distillation_without_a_step_has_no_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no first step after \d+ s: .*no_such_recipe"):
        benchmark.main(["--out", str(tmp_path / "bench"), "no_such_recipe"])


def test_samples_are_told_by_the_innermost_function_of_the_repository() -> None:
    torch, ours = (
        "/site/torch/nn/init.py:normal_",
        f"{ROOT / 'models' / 'decoder' / 'build.py'}:build_student",
    )
    other = f"{ROOT / 'tests' / 'x.py'}:f"
    lines = [
        "0.20\t/lib/runpy.py:run",
        f"0.40\t{torch}\t{ours}",
        f"0.60\t{ours}\t{other}",
        f"0.80\t{torch}\t{other}",
        "9.00\tlate",
    ]
    assert list(spans(lines, until=1.0)) == [
        Span("/lib/runpy.py:run", 0.0, 0.2),
        Span("models/decoder/build.py:build_student", 0.2, pytest.approx(0.4)),
        Span(other, 0.6, pytest.approx(0.2)),
    ]

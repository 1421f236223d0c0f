"""Few functions of evalsuite lie between a call of `evaluate` and a harness or an engine."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from evalsuite import api
from evalsuite.cli.entry import main
from evalsuite.config import RunConfig
from tests.evaluation.conftest import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
MOST = 12


def own_frames() -> list[str]:
    """The functions of evalsuite on the stack of the caller's caller, from `run` or `api.evaluate` on."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if (
            path.is_relative_to(ROOT)
            and not path.is_relative_to(ROOT / "tests")
            and "site-packages" not in path.parts
        ):
            found.append(f"{path.relative_to(ROOT).as_posix()}:{frame.f_code.co_name}")
        frame = frame.f_back
    found.reverse()
    entry = next(name for name in found if name.endswith((":run", ":evaluate")))
    return found[found.index(entry) :]


@pytest.mark.parametrize("by", ["command line", "Python"])
def test_harness_and_engine_are_reached_by_few_calls(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    from evalscope.api.benchmark.adapters.default_data_adapter import DefaultDataAdapter
    from lm_eval.api.task import ConfigurableTask

    stacks: dict[str, list[str]] = {}

    def watch(kind: type, name: str) -> None:
        original: Callable[..., Any] = getattr(kind, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            stacks.setdefault(name, own_frames())
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, watched)

    for name in ("load_dataset", "run_inference", "calculate_metrics"):
        watch(DefaultDataAdapter, name)
    for name in ("construct_requests", "process_results"):
        watch(ConfigurableTask, name)
    for name in ("score", "generate"):
        watch(FakeEngine, name)
    if by == "Python":
        config = RunConfig(suite=suite, checkpoints=["a"], out=tmp_path / "run", quiet=True)
        assert api.evaluate(config).missing == 0
    else:
        command = ["run", str(suite), "--checkpoint", "a", "--out", str(tmp_path / "run"), "--quiet"]
        assert main([*command, "--workers", "1"]) == 0
    assert len(stacks) == 7
    for name, stack in stacks.items():
        assert len(stack) <= MOST, f"{name}: " + " → ".join(stack)

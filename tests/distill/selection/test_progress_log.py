"""The log of a selection loses no row, whenever it is interrupted."""

import os
from pathlib import Path
from typing import Any

import pytest

from evalsuite.distill.selection.context import ProgressLog


def test_an_interrupted_truncation_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> ProgressLog:
        return ProgressLog(tmp_path / "progress.jsonl", teacher="t", about={"lr": 1})

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    log = opened()
    for step in range(6):
        log.append({"step": step})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr("evalsuite.distill.selection.context.append_jsonl", killed)
        with pytest.raises(KeyboardInterrupt):
            opened().truncate(2)
    assert opened().rows == [{"step": step} for step in range(6)]
    opened().truncate(2)
    assert opened().rows == [{"step": 0}, {"step": 1}]

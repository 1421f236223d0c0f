"""Names that come from files are printed without control characters."""

from pathlib import Path

import pytest

from evalsuite.cli.entry import main

NAME = "evil\x1b[2J\x1b]0;owned\x07\x9b31m\u202eeman"
DESCRIBE = "evalsuite.models.checkpoints.describe.describe"


def test_names_in_errors_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", str(tmp_path / NAME), "--min-recovery", "0.9"]) >= 64
    told = capsys.readouterr().err
    assert "evil\\x1b[2J" in told
    assert all(each.isprintable() or each == "\n" for each in told), repr(told)


def test_names_in_usage_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gate", "x", f"--{NAME}"])
    told = capsys.readouterr().err
    assert "\\x1b" in told
    assert all(each.isprintable() or each == "\n" for each in told), repr(told)


def test_names_in_results_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "evalsuite.models.checkpoints.describe.describe", lambda path: f"tensor\t{NAME}\nnext line"
    )
    assert main(["show", "checkpoint", "pocket"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("tensor\tevil\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202eeman\nnext line")


def test_other_text_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "模型 · naïve — 97.8 % ± 1.2\u00a0points 🙂"
    monkeypatch.setattr(DESCRIBE, lambda path: text)
    assert main(["show", "checkpoint", "pocket"]) == 0
    assert capsys.readouterr().out == text + "\n"

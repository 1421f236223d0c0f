"""Modules run by `python -m` end bad input in one line, with the code of the error."""

import runpy
import sys

import pytest

from evalsuite.foundation import ConfigError, RunFolderError
from evalsuite.foundation.module_entry import run_module


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (ConfigError("unknown key"), 64), (RunFolderError("is full"), 73)]
)
def test_errors_are_printed_in_one_line(
    error: Exception | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        if error is not None:
            raise error

    with pytest.raises(SystemExit) as exit_:
        run_module("evalsuite.module", main)
    assert exit_.value.code == code
    assert capsys.readouterr().err == ("" if error is None else f"evalsuite.module: {error}\n")


def test_other_errors_are_defects() -> None:
    with pytest.raises(ZeroDivisionError):
        run_module("evalsuite.module", lambda: 1 / 0)


@pytest.mark.parametrize(
    ("module", "arguments", "code", "message"),
    [
        (
            "reports.studies.recall",
            ["recall-tuning", "--out", "{tmp}", "a=b"],
            64,
            "unknown recipe 'recall-tuning'",
        ),
        (
            "distill.data.decontamination",
            ["generatr", "generator", "--data", "{tmp}", "--check"],
            64,
            "unknown recipe",
        ),
        ("distill.data.questions", ["--data", "{tmp}/missing", "--out", "{tmp}/out"], 65, "cannot be read"),
    ],
)
def test_commands_of_distillation_name_bad_input(
    module: str,
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"evalsuite.{module}"
    monkeypatch.setattr(sys, "argv", [name, *(each.format(tmp=tmp_path) for each in arguments)])
    # Run by `python -m`, a module is not imported before.
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert exit_.value.code == code, line
    assert line.startswith(f"{name}: ")
    assert message in line

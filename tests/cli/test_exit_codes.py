"""Exit codes: 1, 2 and 3 are verdicts of the gate, and every error is 64 or more."""

import argparse

import pytest

from evalsuite.cli.entry import VERBS, build_parser, main
from evalsuite.foundation import CheckpointError


def exit_code(*argv: str) -> int:
    """Return the exit code of the process."""
    try:
        return main(argv)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "COMMAND"),
        (("gaet", "runs/x"), "did you mean 'gate'?"),
        (("run", "quick", "--checkpoint", "x", "--out", "y", "--limti", "3"), "did you mean '--limit'?"),
        (("admit", "runs/x", "--out", "y", "--policy", "p"), "--policy p; an option of run, compare, gate\n"),
        (("run", "quick", "--out", "y", "--limit", "three"), "invalid int value"),
        (("gate", "runs/x", "--min-recovery", "0.9", "--policy", "gate.yaml"), "either --policy"),
        (("gate", "runs/x"), "either --policy"),
        (("run", "quick", "--out", "y", "--policy", "p"), "--policy belongs to --dry-run"),
        (("run", "quick", "--out", "y"), "pass --checkpoint and/or --teacher"),
        (("distill", "no-such-recipe", "--out", "y"), "no-such-recipe"),
    ],
)
def test_usage_error_exits_64_with_a_hint(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*argv) == 64
    assert message in capsys.readouterr().err


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        name = verb.__name__.rsplit(".", 1)[1]
        assert exit_code(name, "--help") == 0
        assert f"example:\n  evalsuite {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (CheckpointError("model.safetensors: truncated"), 66),
        (ValueError("a bug"), 70),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device", "out/x"), 73),
    ],
)
def test_errors_never_exit_with_a_gate_verdict(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise raised

    parser = build_parser()
    namespace = parser.parse_args(["gate", "runs/x", "--max-gap", "5"])
    namespace.call = fail
    monkeypatch.setattr("evalsuite.cli.entry.build_parser", lambda: _Fixed(namespace))
    assert main([]) == code
    assert capsys.readouterr().err


class _Fixed:
    """A parser that has already parsed."""

    def __init__(self, namespace: argparse.Namespace) -> None:
        self.namespace = namespace

    def parse_args(self, argv: object) -> argparse.Namespace:
        return self.namespace

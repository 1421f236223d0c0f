"""Options and arguments of earlier versions are refused with their replacement."""

import pytest

from evalsuite.cli.entry import build_parser, main
from evalsuite.cli.retired import ARGUMENTS, OPTIONS


@pytest.mark.parametrize(("command", "option"), [(c, o) for c, table in OPTIONS.items() for o in table])
def test_retired_option_is_refused_with_its_replacement(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ([option, "value"], [f"{option}=value"]):
        with pytest.raises(SystemExit) as stop:
            main([command, "x", *form, "--out", "y"])
        assert stop.value.code >= 64
        assert f"{option} is now {OPTIONS[command][option]}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ARGUMENTS["bench"])
def test_retired_bench_study_is_refused_with_its_make_target(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", name])
    assert stop.value.code >= 64
    assert f"make bench-{name}" in capsys.readouterr().err


def test_retired_options_have_replacements_that_exist() -> None:
    known = build_parser()._options()
    for command, table in OPTIONS.items():
        for old, new in table.items():
            assert old not in known, command
            assert new in known, command

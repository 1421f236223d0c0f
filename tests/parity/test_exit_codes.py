"""The exit codes that all parity studies share."""

import argparse

import pytest

from evalsuite.foundation import DataError
from tests.parity.exit_codes import exit_with


@pytest.mark.parametrize("code", [0, 1])
def test_parity_exit_code_is_0_if_it_holds_and_1_if_it_differs(code: int) -> None:
    with pytest.raises(SystemExit) as stop:
        exit_with(lambda: code)
    assert stop.value.code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("no data"), 65),
        (FileNotFoundError("run"), 70),
        (KeyboardInterrupt(), 130),
        (SystemExit("failed"), 70),
    ],
)
def test_parity_exit_code_of_an_error_is_64_or_more(error: BaseException, code: int) -> None:
    def main() -> int:
        raise error

    with pytest.raises(SystemExit) as stop:
        exit_with(main)
    assert stop.value.code == code


def test_parity_exit_code_of_a_usage_error_is_64() -> None:
    def main() -> int:
        argparse.ArgumentParser().parse_args(["--unknown"])
        return 0

    with pytest.raises(SystemExit) as stop:
        exit_with(main)
    assert stop.value.code == 64

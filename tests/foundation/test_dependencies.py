"""A package that is missing is reported with the extra that installs it."""

import pytest

from evalsuite.foundation.dependencies import missing_dependency


@pytest.mark.parametrize(
    ("module", "verb", "extra"),
    [
        ("torch", "run", "eval"),
        ("torch.nn", "distill", "distill"),
        ("lm_eval.tasks", "run", "eval"),
        ("fla", "run", "gpu"),
    ],
)
def test_the_extra_is_named(module: str, verb: str, extra: str) -> None:
    error = missing_dependency(ModuleNotFoundError(f"No module named {module!r}", name=module), verb)
    assert error is not None
    assert f"pip install 'evalsuite[{extra}]'" in str(error)


def test_a_module_of_our_own_is_no_dependency() -> None:
    assert missing_dependency(ModuleNotFoundError("no", name="evalsuite.models.nothing"), "run") is None

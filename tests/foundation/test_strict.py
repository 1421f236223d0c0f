"""What a user wrote is understood whole, or refused by file, field, value and nearest key."""

from pathlib import Path

import pytest
from pydantic import Field

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import Strict, load, parse


class Stage(Strict):
    """A stage, for these tests."""

    tokens: int
    lr: float = 1e-3


class Recipe(Strict):
    """A recipe, for these tests."""

    name: str
    stages: list[Stage] = Field(default_factory=list)
    by_name: dict[str, Stage] = Field(default_factory=dict)


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\nstagse: []\n")
    with pytest.raises(ConfigError, match=r"recipe\.yaml: unknown key 'stagse'; did you mean 'stages'\?"):
        load(path, Recipe)


def test_an_unknown_key_inside_a_list_or_mapping_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'stages\.0\.token'; did you mean 'tokens'\?"):
        parse({"name": "x", "stages": [{"tokens": 1, "token": 2}]}, Recipe, "recipe")
    with pytest.raises(ConfigError, match=r"'by_name\.a\.lrr'; did you mean 'lr'\?"):
        parse({"name": "x", "by_name": {"a": {"tokens": 1, "lrr": 2}}}, Recipe, "recipe")


def test_every_mistake_is_listed_with_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"stages": [{"tokens": "many"}]}, Recipe, "recipe")
    assert "'name' is required" in str(caught.value)
    assert "'stages.0.tokens' = 'many'" in str(caught.value)


def test_nan_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'stages\.0\.lr' = nan"):
        parse({"name": "x", "stages": [{"tokens": 1, "lr": float("nan")}]}, Recipe, "recipe")


@pytest.mark.parametrize(("text", "message"), [("a: [", "not YAML"), ("- 1\n", "expected a mapping")])
def test_what_is_not_a_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "x.yaml", Recipe)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "absent.yaml", Recipe)

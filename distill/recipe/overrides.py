"""Dotted-key overrides of an unvalidated recipe, such as `stage.kd.lr=1e-3` or `student.mixers=[gla]`."""

from copy import deepcopy
from typing import Any

from evalsuite.distill.recipe.stage import stage_settings
from evalsuite.foundation import ConfigError, nearest


def apply_override(tree: dict[str, Any], key: str, setting: Any, source: str) -> None:
    """Set the dotted `key` in the recipe `tree` in place; `stage.…` addresses one stage or all of them.

    Raises:
        ConfigError: the stage does not exist, or a parent key is not a mapping. The message starts with
            `source`.
    """
    head, _, rest = key.partition(".")
    if head in ("stage", "stages") and rest:
        for stage, field in _matching_stages(tree.get("stages") or [], rest, source):
            _set(stage, field, setting, source)
    else:
        _set(tree, key, setting, source)


def _matching_stages(stages: list[dict[str, Any]], key: str, source: str) -> list[tuple[dict[str, Any], str]]:
    """The stages that `key` addresses (a field, optionally after a stage's name or number), with the
    field."""
    first, _, rest = key.partition(".")
    names = [str(stage.get("name")) for stage in stages]
    if rest and first in names:
        return [(stages[names.index(first)], rest)]
    if first.isdigit():
        if int(first) >= len(stages):
            raise ConfigError(f"{source}: there is no stage {first}; stages are {', '.join(names)}")
        return [(stages[int(first)], rest)]
    if rest and first not in stage_settings({str(stage.get("objective")) for stage in stages}):
        raise ConfigError(f"{source}: unknown stage '{first}'{nearest(first, names)}")
    return [(stage, key) for stage in stages]


def _set(tree: dict[str, Any], key: str, setting: Any, source: str) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = tree.get(parent)
        if inner is None:
            inner = tree[parent] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{source}: '{parent}' is not a mapping of settings")
        tree = inner
    # YAML anchors make variants share their values, so each override gets its own copy.
    tree[last] = deepcopy(setting)

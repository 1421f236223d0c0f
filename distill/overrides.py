"""Overrides of a recipe that is still plain YAML: `stage.kd.lr=1e-3`, `student.mixers=[gla]`."""

from collections.abc import Collection
from copy import deepcopy
from typing import Any

from evalsuite.foundation import ConfigError, nearest


def apply_override(
    tree: dict[str, Any], key: str, setting: Any, stage_fields: Collection[str], source: str
) -> None:
    """Set the dotted `key` inside the unvalidated recipe `tree`; `stage.…` reaches one stage or all.

    Raises:
        ConfigError: a stage that does not exist, or a key inside something that holds no keys; the
            message starts with `source`.
    """
    head, _, rest = key.partition(".")
    if head in ("stage", "stages") and rest:
        for stage, field in _addressed(tree.get("stages") or [], rest, stage_fields, source):
            _put(stage, field, setting, source)
    else:
        _put(tree, key, setting, source)


def _addressed(
    stages: list[dict[str, Any]], key: str, stage_fields: Collection[str], source: str
) -> list[tuple[dict[str, Any], str]]:
    """The stages that `key` (a field, perhaps after a stage's name or number) speaks of, and the field."""
    first, _, rest = key.partition(".")
    names = [str(stage.get("name")) for stage in stages]
    if rest and first in names:
        return [(stages[names.index(first)], rest)]
    if first.isdigit():
        if int(first) >= len(stages):
            raise ConfigError(f"{source}: there is no stage {first}; stages are {', '.join(names)}")
        return [(stages[int(first)], rest)]
    if rest and first not in stage_fields:
        raise ConfigError(f"{source}: unknown stage '{first}'{nearest(first, names)}")
    return [(stage, key) for stage in stages]


def _put(tree: dict[str, Any], key: str, setting: Any, source: str) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = tree.get(parent)
        if inner is None:
            inner = tree[parent] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{source}: '{parent}' is not a group of settings")
        tree = inner
    # A variant may change inside what it sets, and YAML anchors make variants share it.
    tree[last] = deepcopy(setting)

"""YAML in which a mapping has every key once; where PyYAML would keep the last value, it is refused."""

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from evalsuite.foundation.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"


class _DuplicateKeyError(Exception):
    """Its message names line and key."""


class _Loader(yaml.SafeLoader):  # libyaml would crash on deep nesting
    """PyYAML's safe loader, which refuses a key given twice, and merged mappings that disagree on a key."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace `node`'s pairs by those that count: its own, then those merged into it."""
        given: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        sources: list[tuple[yaml.MappingNode, int]] = []
        for key, value in node.value:
            name: Any = key
            if key.tag == _MERGE:
                name = _MERGE
                sources = [(each, _line(key)) for each in self._mappings(value)]
            else:
                if key.tag == "tag:yaml.org,2002:value":
                    key.tag = "tag:yaml.org,2002:str"
                name = self._name(key)
            if name in given:
                raise _DuplicateKeyError(
                    f"line {_line(key)}: key {_shown(key)} occurs twice (first in line "
                    f"{_line(given[name][0])}); keep one"
                )
            given[name] = (key, value)
        given.pop(_MERGE, None)
        for source, line in sources:
            self.flatten_mapping(source)
            for key, value in source.value:
                name = self._name(key)
                if name in given:
                    continue
                before = merged.setdefault(name, (key, value))[1]
                if before is not value and self._content(before) != self._content(value):
                    raise _DuplicateKeyError(
                        f"line {line}: key {_shown(key)} is merged (<<) with two values, of lines "
                        f"{_line(before)} and {_line(value)}; write the one that counts next to the <<"
                    )
        node.value = [*merged.values(), *given.values()]

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Construct an integer of at most 64 bits, which every library can hold."""
        number = int(super().construct_yaml_int(node))
        if not -(2**63) <= number < 2**63:
            raise yaml.constructor.ConstructorError(
                None, None, f"the number {node.value} has more than 64 bits", node.start_mark
            )
        return number

    def _mappings(self, value: yaml.Node) -> list[yaml.MappingNode]:
        found = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for each in found:
            if not isinstance(each, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(
                    "while constructing a mapping", value.start_mark, "'<<' merges mappings", each.start_mark
                )
        return list(found)

    def _content(self, node: yaml.Node) -> Any:
        """What a node states; a list or mapping that is being constructed would still be empty."""
        if isinstance(node, yaml.SequenceNode):
            return [self._content(each) for each in node.value]
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            return {self._name(key): self._content(value) for key, value in node.value}
        return self.construct_object(node)

    def _name(self, key: yaml.Node) -> Any:
        """The key as Python has it, which tells what another key would overwrite."""
        name = self.construct_object(key, deep=True)
        try:
            hash(name)
        except TypeError:
            raise yaml.constructor.ConstructorError(
                "while constructing a mapping", key.start_mark, "found an unhashable key", key.start_mark
            ) from None
        return name


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _shown(key: yaml.Node) -> str:
    return repr(key.value) if isinstance(key, yaml.ScalarNode) else "of a collection"


@lru_cache(maxsize=64)
def _loaded(text: str) -> Any:
    """A document, parsed once: each variant of a recipe reads its file, in 10 ms."""
    return yaml.load(text, _Loader)


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document.

    Args:
        text: the document.
        source: where it comes from, for errors.

    Raises:
        ConfigError: it is not YAML, a mapping has a key twice, or mappings that are merged disagree.
    """
    try:
        return deepcopy(_loaded(text))
    except _DuplicateKeyError as error:
        raise ConfigError(f"{source}, {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date that does not exist, or a number with thousands of digits.
        raise ConfigError(f"{source}: not YAML ({error})") from error


def read_yaml_value(path: Path) -> Any:
    """Read a YAML file. Raises ConfigError as `parse_yaml`, and for a file that is missing or unreadable."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    return parse_yaml(text, str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: as `read_yaml_value`, or the file is not a mapping.
    """
    value = read_yaml_value(path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(value).__name__}")
    return value

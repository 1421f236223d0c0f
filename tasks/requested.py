"""What to evaluate, as one types it: `arc_easy,gsm8k:0shot,hellaswag:loglikelihood:limit=200,mine.yaml`.

Does without what reads suites, as hosts do that only run inference.
"""

import re
from dataclasses import dataclass, replace
from os.path import isfile
from typing import Any

from evalsuite.foundation import ConfigError
from evalsuite.foundation.taxonomy import PROTOCOLS, Protocol

OPTIONS = f"Nshot, {' or '.join(PROTOCOLS)}, or limit=N"


@dataclass(frozen=True, slots=True)
class Requested:
    """A suite, a benchmark or a YAML file of either, and what differs from its own settings."""

    name: str
    num_fewshot: int | None = None
    protocol: Protocol | None = None
    limit: int | None = None
    """Documents of each benchmark."""

    @property
    def is_file(self) -> bool:
        """Whether it names a YAML file."""
        return self.name.endswith((".yaml", ".yml"))

    @property
    def is_plain(self) -> bool:
        """Whether nothing differs."""
        return self == Requested(self.name)


def parse_requested(text: str) -> list[Requested]:
    """Parse names that are joined by commas, each with options after colons.

    Raises:
        ConfigError: no name, one that is given twice, or an unknown option.
    """
    # Unlike a path, this takes a list of any length.
    if isfile(text):
        return [Requested(text)]
    found = [_parse(item.strip()) for item in text.split(",")]
    names = [each.name for each in found]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"'{text}': '{repeated}' is given twice")
    return found


def _parse(item: str) -> Requested:
    name, *options = item.split(":")
    if not name:
        raise ConfigError(f"'{item}': no suite or benchmark; give names that are joined by commas")
    requested = Requested(name)
    for option in options:
        change: dict[str, Any]
        if option in PROTOCOLS:
            change = {"protocol": option}
        elif match := re.fullmatch(r"(\d+)shot", option):
            change = {"num_fewshot": int(match[1])}
        elif match := re.fullmatch(r"limit=([1-9]\d*)", option):
            change = {"limit": int(match[1])}
        else:
            raise ConfigError(f"'{item}': unknown option '{option}'; give {OPTIONS}")
        requested = replace(requested, **change)
    return requested


def requested_name(text: str) -> str:
    """Name of the suite that `text` stands for, if no file states it."""
    items = [item.strip() for item in text.split(",")]
    parts = [re.sub(r".*/|\.ya?ml", "", item) for item in items]
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", "+".join(parts))

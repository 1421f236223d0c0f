"""What to evaluate, as one types it: `arc_easy,gsm8k:0shot,hellaswag:loglikelihood:limit=200,mine.jsonl`.

Does without what reads suites, as hosts do that only run inference.
"""

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from evalsuite.foundation import ConfigError
from evalsuite.foundation.taxonomy import PROTOCOLS, Protocol

OPTIONS = f"Nshot, {' or '.join(PROTOCOLS)}, limit=N, or thinking_budget=N"
YAML_FILES = (".yaml", ".yml")
QUESTION_FILES = (".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet")
"""Files of one's own questions; see `evalsuite.tasks.questions`."""
QUESTION_COLUMNS = ("question", "choices", "answer", "context")
"""What columns of such a file hold, which options name: `questions.csv:answer=solution`."""
_COLUMN = re.compile(rf"({'|'.join(QUESTION_COLUMNS)})=(.+)")


@dataclass(frozen=True, slots=True)
class Requested:
    """A suite, a benchmark, a YAML file or a file of questions, and what differs from its own settings."""

    name: str
    num_fewshot: int | None = None
    protocol: Protocol | None = None
    limit: int | None = None
    """Documents of each benchmark."""
    thinking_budget: int | None = None
    """Tokens after which a thought is closed by force."""
    columns: tuple[tuple[str, str], ...] = ()
    """What a column of a file of questions holds → its name."""

    @property
    def is_yaml(self) -> bool:
        """Whether it names a YAML file."""
        return self.name.endswith(YAML_FILES)

    @property
    def is_questions(self) -> bool:
        """Whether it names a file of questions."""
        return self.name.endswith(QUESTION_FILES)

    @property
    def is_plain(self) -> bool:
        """Whether nothing differs."""
        return self == Requested(self.name)

    @property
    def benchmark(self) -> str:
        """The benchmark as a suite names it."""
        columns = (f":{what}={column}" for what, column in self.columns)
        is_file = self.is_yaml or self.is_questions
        return (os.path.abspath(self.name) if is_file else self.name) + "".join(columns)


def is_benchmark_file(name: str) -> bool:
    """Whether a suite names a benchmark by its file, not by its name."""
    return name.endswith(YAML_FILES) or is_questions_file(name)


def is_questions_file(name: str) -> bool:
    """Whether a suite names a file of questions, perhaps with columns: ``questions.csv:answer=solution``."""
    return name.endswith(QUESTION_FILES) or name.split(":")[0].endswith(QUESTION_FILES)


def parse_requested(text: str) -> list[Requested]:
    """Parse names that are joined by commas, each with options after colons.

    Raises:
        ConfigError: no name, one that is given twice, or an unknown option.
    """
    # Unlike a path, this takes a list of any length.
    if os.path.isfile(text):
        return [Requested(text)]
    found = [parse_item(item.strip()) for item in text.split(",")]
    names = [each.name for each in found]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"'{text}': '{repeated}' is given twice")
    return found


def parse_item(item: str) -> Requested:
    """Parse one name with its options. Raises ConfigError for an empty name or an unknown option."""
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
        elif match := re.fullmatch(r"thinking_budget=([1-9]\d*)", option):
            change = {"thinking_budget": int(match[1])}
        elif requested.is_questions and (match := _COLUMN.fullmatch(option)):
            change = {"columns": (*requested.columns, (match[1], match[2]))}
        else:
            columns = f", or {'=, '.join(QUESTION_COLUMNS)}=COLUMN" if requested.is_questions else ""
            raise ConfigError(f"'{item}': unknown option '{option}'; give {OPTIONS}{columns}")
        requested = replace(requested, **change)
    return requested


def requested_name(text: str) -> str:
    """Name of the suite that `text` stands for, if no file states it."""
    items = [item.strip() for item in text.split(",")]
    ends = "|".join(map(re.escape, (*YAML_FILES, *QUESTION_FILES)))
    parts = [re.sub(rf".*/|(?:{ends})(?=:|$)", "", item) for item in items]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.+-]", "-", "+".join(parts)).lstrip("-") or "questions"

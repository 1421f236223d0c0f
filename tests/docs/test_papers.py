"""The page on the papers: every name and link on it exists, and every state is one of five."""

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields
from fnmatch import filter as matching
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs._generate.links import LINK, repository_file
from evalsuite.cli.entry import build_parser
from evalsuite.distill import load_recipe
from evalsuite.distill.recipe.stage import OBJECTIVES
from evalsuite.distill.selection.selector import SELECTORS
from evalsuite.distill.trainable import TRAINABLE_SETS
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.models.inits import INITS
from evalsuite.models.mixers import MIXERS
from evalsuite.tasks.benchmark import known_benchmarks
from evalsuite.tasks.suite import known_suites

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "papers.md"
RESULTS = ("measured", "smaller scale")
STATES = (*RESULTS, "runs", "differs", "missing")
NAME = re.compile(r"(?:(objective|init|preset|selector|suite|field|trained set|of)s?\s+)?`([^`]+)`")
READ = cache(read_yaml)


def lines() -> Iterator[list[str]]:
    """The cells of every line on a paper: what it does, where it is here, its state."""
    inside = False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and inside:
            yield cells
        inside = line.startswith("|---|---|---|") or (inside and line.startswith("|"))


LINES = list(lines())


def named() -> list[tuple[str, str]]:
    """Kind and name of all that the second cells name; `a`, `b` after one kind are both of it."""
    found = []
    for _, here, _ in LINES:
        kind, end = "", 0
        for match in NAME.finditer(here):
            kept = kind if here[end : match.start()] == ", " else ""
            kind, end = match[1] or kept, match.end()
            found.append(("" if kind == "of" else kind, match[2]))
    return sorted(set(found))


def is_recipe(name: str) -> bool:
    """Whether a recipe loads with its variant; `recipe:t5-*` has several."""
    base, _, variant = name.partition(":")
    if "*" in variant:
        return bool(matching(load_recipe(base).variants, variant))
    try:
        load_recipe(name)
    except ConfigError:
        return False
    return True


def is_command(text: str) -> bool:
    """Whether a command and all its options exist."""
    _, verb, *arguments = shlex.split(text)
    (commands,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    options = commands.choices[verb]._option_string_actions
    return all(each in options for each in arguments if each.startswith("--"))


def is_field(name: str) -> bool:
    """Whether mixers have an option of this name, or a recipe a field at this path."""
    if any(name == each.name for mixer in MIXERS for each in fields(MIXERS[mixer].Options)):
        return True
    *above, last = name.split(".")
    part: Any = load_recipe("gendistill-2026")
    for each in above:
        part = getattr(part, each)
    return last in type(part).model_fields


def is_known(name: str) -> bool:
    """Whether a name without a kind is a command, a benchmark, a mixer, or a recipe with its variant."""
    if name.startswith("evalsuite "):
        return is_command(name)
    return name in known_benchmarks() or name in MIXERS or is_recipe(name)


EXISTS: dict[str, Callable[[str], bool]] = {
    "": is_known,
    "objective": lambda name: name in OBJECTIVES,
    "init": lambda name: name in INITS,
    "preset": lambda name: any(name in getattr(MIXERS[each].Options, "presets", ()) for each in MIXERS),
    "selector": lambda name: name in SELECTORS,
    "suite": lambda name: name in known_suites(),
    "field": is_field,
    "trained set": lambda name: name in TRAINABLE_SETS,
}


def test_the_page_has_all_papers() -> None:
    sections = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(sections) == 5
    assert len(LINES) > 100
    assert all(len(cells) == 3 and all(cells) for cells in LINES)


@pytest.fixture(autouse=True)
def recipes_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing a recipe takes longer than resolving a variant of it."""
    monkeypatch.setattr("evalsuite.distill.recipe.recipe.read_yaml", lambda path: deepcopy(READ(path)))


@pytest.mark.parametrize(("kind", "name"), named())
def test_what_a_line_names_exists(kind: str, name: str) -> None:
    assert EXISTS[kind](name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("", "gendistill-2026:t5-sft"),
        ("", "gendistill-2026:t7-*"),
        ("", "linearizing-2024"),
        ("", "evalsuite compare --suites"),
        ("suite", "kd"),
        ("field", "student.layer"),
    ],
)
def test_a_name_that_does_not_exist_is_noticed(kind: str, name: str) -> None:
    assert not EXISTS[kind](name)


def test_every_state_is_one_of_five_and_gives_what_it_needs() -> None:
    """A result needs a link to it; what differs or is missing needs a reason."""
    legend = re.findall(r"^\| `([a-z ]+)` \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    assert tuple(legend) == STATES
    for what, _, state in LINES:
        match = re.match(r"`([a-z ]+)`(.*)", state)
        assert match is not None, what
        assert match[1] in STATES, what
        if match[1] in RESULTS:
            assert "../reports/results/" in match[2], what
        if match[1] in ("differs", "missing"):
            assert match[2].startswith(": "), what


def test_every_link_leads_somewhere() -> None:
    found = [match["target"] for match in LINK.finditer(PAGE.read_text())]
    assert len(found) > 60
    assert [target for target in found if repository_file(PAGE, target) is None] == []

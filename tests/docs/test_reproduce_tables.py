"""The commands that reproduce the papers' tables at pocket scale: every name in them exists."""

import argparse
import re
import shlex

import pytest

from evalsuite.cli.commands.distill import recipes
from evalsuite.cli.entry import build_parser
from evalsuite.distill import load_recipe
from evalsuite.distill.selection.selector import SELECTORS
from evalsuite.tasks.suite import load_suite, resolve
from tests.docs.page_code import ROOT

PAGE = ROOT / "docs" / "how-to" / "reproduce-tables.md"
SECTION = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1]
TABLE = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")][1:]
COMMANDS = sorted(set(re.findall(r"^evalsuite .+$|(?<=`)evalsuite [^`]+(?=`)", SECTION, re.MULTILINE)))


def parsed(command: str) -> argparse.Namespace:
    return build_parser().parse_args(shlex.split(command)[1:])


def test_every_table_has_a_command_that_distills_and_one_that_evaluates() -> None:
    assert len(TABLE) > 20
    for _, distill, run, students in TABLE:
        assert distill.startswith("`evalsuite distill ")
        assert run.startswith("`evalsuite run ")
        chosen = recipes(parsed(distill.strip("`")))
        assert sum(len(mixers or recipe.labels) for _, recipe, mixers in chosen) == int(students)
    assert {command.split()[1] for command in COMMANDS} == {"distill", "run", "select", "compare"}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_names_exists(command: str) -> None:
    """Variants that train the same students are refused, too."""
    arguments = parsed(command)
    if command.split()[1] == "distill":
        chosen = recipes(arguments)
        assert {recipe.teacher for _, recipe, _ in chosen} <= {"pocket", None}
    elif command.split()[1] == "select":
        assert load_recipe(arguments.recipe).teacher == "pocket"
        assert arguments.selector in SELECTORS
    elif command.split()[1] == "run":
        only = [[name] for name in vars(arguments).get("benchmarks", ())]
        assert resolve(load_suite(arguments.suite), only=only)

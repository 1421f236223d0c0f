"""The commands that reproduce the papers' tables at pocket scale: every name in them exists."""

import argparse
import re
import shlex

import pytest

from evalsuite.cli.commands.distill import recipes
from evalsuite.cli.entry import build_parser
from evalsuite.distill import load_recipe
from evalsuite.distill.selection.selector import SELECTORS
from evalsuite.reports.studies.paper_tables import rows, section
from evalsuite.tasks.suite import load_suite, resolve

ROWS = rows()
COMMANDS = sorted({each for row in ROWS for each in (*row.before, row.distill, row.run, row.compare)})


def parsed(command: str) -> argparse.Namespace:
    return build_parser().parse_args(shlex.split(command)[1:])


def test_every_table_has_a_command_that_distills_and_one_that_evaluates() -> None:
    assert len(ROWS) > 20
    for row in ROWS:
        assert row.tables
        assert row.distill.startswith("evalsuite distill ")
        assert row.run.startswith("evalsuite run ")
        chosen = recipes(parsed(row.distill))
        assert sum(len(mixers or recipe.labels) for _, recipe, mixers in chosen) == row.students
    assert {command.split()[1] for command in COMMANDS} == {"distill", "run", "select", "compare"}
    assert set(re.findall(r"^evalsuite .+$", section(), re.MULTILINE)) <= set(COMMANDS)


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

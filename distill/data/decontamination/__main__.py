"""Decontamination: the training documents of a recipe that contain text of the benchmarks of a suite.

    python -m evalsuite.distill.data.decontamination RECIPE SUITE --data DIR --out DIR

compares every source, without its exclusion list unless `--as-trained` is given, by 13-grams and by questions
and answers, and writes overlap.csv (benchmark documents with n-grams in the training text, per benchmark),
overlap-training.csv (training documents that overlap with a benchmark, per source), overlap-pairs.csv (both,
per source and benchmark) and overlap-exclude.txt, a list for the `exclude` key of a source. With `--check`
nothing is written: the sources are read as the recipe reads them, and a recipe that trains on text of an
evaluated document is refused. Training text is streamed; only the benchmark side is held in memory.
"""

import argparse
from pathlib import Path

from evalsuite.distill.data.decontamination.overlap import check, measure, suite_rows, write
from evalsuite.distill.recipe import Recipe, load_recipe
from evalsuite.foundation import ConfigError
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser
from evalsuite.models import describe_checkpoint


def main() -> None:
    """Report the overlap between the training text of a recipe and a suite, or refuse it."""
    parser = Parser(prog="python -m evalsuite.distill.data.decontamination", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("recipe", help="a name from `evalsuite show recipes`, or a YAML file")
    parser.add_argument("suite", help="as in `evalsuite run`")
    parser.add_argument(
        "--data", help="frozen data of the benchmarks (default: EVALSUITE_DATA, else the hub)"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="folder for the four files")
    action.add_argument(
        "--check", action="store_true", help="refuse a recipe that trains on evaluated documents"
    )
    parser.add_argument(
        "--as-trained", action="store_true", help="leave out what the sources exclude, as the recipe does"
    )
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    rows = suite_rows(arguments.suite, arguments.data)
    tokenizer = describe_checkpoint(checkpoint_of(recipe)).tokenizer
    if arguments.check:
        check(recipe.data, tokenizer, rows)
        print(f"recipe '{recipe.name}' trains on no text of the documents of suite '{arguments.suite}'")
        return
    write(measure(recipe.data, tokenizer, rows, as_trained=arguments.as_trained), arguments.out)
    for path in sorted(arguments.out.glob("overlap*.csv")):
        print(path.read_text())


def checkpoint_of(recipe: Recipe) -> str:
    """The checkpoint whose tokenizer renders conversations. Raises ConfigError if the recipe names none."""
    student = recipe.student
    for path in (recipe.teacher, student.shape_from, *student.initial_checkpoints.values()):
        if path is not None:
            return path
    raise ConfigError(
        f"recipe '{recipe.name}': names no checkpoint whose tokenizer could render its conversations; "
        "set 'teacher'"
    )


if __name__ == "__main__":
    run_module("evalsuite.distill.data.decontamination", main)

"""Command line of the page of a study."""

import sys
from collections.abc import Sequence
from pathlib import Path

from evalsuite.foundation import ConfigError, EvalsuiteError, nearest
from evalsuite.foundation.parser import Parser
from evalsuite.reports.admission import admit, load_rule
from evalsuite.reports.studies.training_choices.page.documents import write_all_scores, write_documents
from evalsuite.reports.studies.training_choices.page.effects_page import write_page
from evalsuite.reports.studies.training_choices.page.orders_page import write_orders_page
from evalsuite.reports.studies.training_choices.page.reading import read_study
from evalsuite.reports.studies.training_choices.page.states_page import write_states_page

NAME = "evalsuite.reports.studies.training_choices.page"
PAGES = {"effects": write_page, "orders": write_orders_page, "states": write_states_page}
ALL_SCORES = "scores"
"""No page, but the scores of all checkpoints of a run, which need not be a study's."""
WITHOUT_AVERAGES = ("states", ALL_SCORES)
"""Pages that show each benchmark alone, also those that are not admitted to averages."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; returns 64 for input that cannot be read."""
    parser = Parser(prog=f"python -m {NAME}")
    parser.add_argument("run", type=Path, help="run folder with scores")
    parser.add_argument(
        "--study",
        type=Path,
        help="output folder of evalsuite.reports.studies.training_choices; every page needs it",
    )
    parser.add_argument(
        "--teacher", metavar="NAME", help="checkpoint that is the teacher (default: that of the run's plan)"
    )
    parser.add_argument("--rule", type=Path, help="rule of admission (default: that of `evalsuite admit`)")
    parser.add_argument(
        "--page",
        choices=sorted([*PAGES, ALL_SCORES]),
        default="effects",
        help="effects of choices next to the paper's (default), the order of students with each defect, "
        "or percentage right by the size of states; scores: instead of a page, scores.csv and "
        "documents.parquet of all checkpoints of any run",
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="BENCHMARK", help="benchmarks to leave out"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    given = parser.parse_args(arguments)
    try:
        if (given.study is None) != (given.page == ALL_SCORES):
            raise ConfigError(
                f"--page {given.page}: {'needs' if given.study is None else 'takes no'} --study"
            )
        decisions = admit(given.run, given.teacher, load_rule(given.rule))
        every = given.page in WITHOUT_AVERAGES
        shown = {each.benchmark: each.title for each in decisions if every or each.is_admitted}
        if unknown := [name for name in given.without if name not in shown]:
            what = "benchmark" if every else "admitted benchmark"
            raise ConfigError(f"--without {unknown[0]}: no {what}{nearest(unknown[0], shown)}")
        names = [name for name in shown if name not in given.without]
        if given.page == ALL_SCORES:
            print(write_all_scores(given.run, names, given.teacher, given.out))
            return 0
        refused = {each.title: each.why for each in decisions if not each.is_admitted}
        refused |= {shown[name]: "left out by --without" for name in given.without}
        data = read_study(given.run, given.study, names, given.teacher, is_part=bool(given.without))
        page = PAGES[given.page](data, given.out, refused)
        if not data.is_part:
            write_documents(data, given.out)
        print(page)
    except EvalsuiteError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())

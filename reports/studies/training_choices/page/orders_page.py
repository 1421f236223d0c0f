"""Writes the page of a study of defects: their effects, and whether one changes the order of students."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from evalsuite.foundation import write_text
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports.formatting import NOTHING
from evalsuite.reports.studies.training_choices.analysis.effects import Effect, effects
from evalsuite.reports.studies.training_choices.analysis.orders import PairOrder, pair_orders
from evalsuite.reports.studies.training_choices.page.effects_page import counts_sentence, runs_section
from evalsuite.reports.studies.training_choices.page.figure import draw
from evalsuite.reports.studies.training_choices.page.reading import StudyData
from evalsuite.reports.studies.training_choices.page.tables import (
    Table,
    drops_table,
    not_counted,
    runs_table,
    teacher_table,
    with_interval,
    write_tables,
)

READINGS = {"all": "in every mixer", "published": "where published"}


def write_orders_page(data: StudyData, out: Path, refused: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write ``README.md``, a CSV file per table and ``effects.svg``; return the page.

    Args:
        refused: title of a benchmark that is not admitted → why.
    """
    found = effects(data.scores, data.axes)
    pairs = [pair for protocol in PROTOCOLS for pair in pair_orders(data.scores, data.axes, protocol)]
    tables = write_tables(
        out,
        teacher_table(data),
        drops_table(data),
        defects_table(data, found),
        pairs_table(pairs),
        runs_table(data),
    )
    write_text(out / "effects.svg", draw(found))
    page = out / "README.md"
    write_text(page, _page(data, tables, pairs, refused))
    return page


def defects_table(data: StudyData, found: Sequence[Effect]) -> Table:
    """Effect of every defect on every student under both protocols."""
    rows = []
    for effect in found:
        axis = data.axes[effect.axis]
        where = axis.published_for or axis.students
        published = (
            NOTHING if effect.student is None else "yes" if not where or effect.student in where else "no"
        )
        student = "mean" if effect.student is None else f"`{effect.student}`"
        cells = (with_interval(effect.under(protocol)) for protocol in PROTOCOLS)
        rows.append((effect.arm, f"{effect.axis}: {axis.base}", student, published, *cells))
    titles = (PROTOCOL_TITLES[protocol] for protocol in PROTOCOLS)
    return Table("defects", ("defect", "base", "mixer", "published code has it", *titles), tuple(rows))


def pairs_table(pairs: Sequence[PairOrder]) -> Table:
    """Every pair of students with and without every defect."""
    rows = [
        (
            pair.arm,
            READINGS[pair.reading],
            PROTOCOL_TITLES[pair.protocol],
            f"`{pair.first}` − `{pair.second}`",
            with_interval(pair.base),
            with_interval(pair.changed),
            with_interval(pair.shift),
            pair.verdict,
        )
        for pair in pairs
    ]
    columns = ("defect", "present", "protocol", "pair", "without", "with", "shift", "order")
    return Table("orders", columns, tuple(rows))


def order_sentences(pairs: Sequence[PairOrder]) -> list[str]:
    """Answer, for each protocol, whether any defect changes the order of students."""
    found = []
    for protocol in PROTOCOLS:
        own = [pair for pair in pairs if pair.protocol == protocol]
        if not own:
            continue
        reverse = [pair for pair in own if pair.verdict == "reversed"]
        open_pairs = sum(pair.verdict == "not decided" for pair in own)
        named = ", ".join(
            f"{pair.arm} ({READINGS[pair.reading]}: `{pair.second}` ahead of `{pair.first}`)"
            for pair in reverse
        )
        answer = f"reversed by {named}" if reverse else "reversed by no defect"
        found.append(
            f"{PROTOCOL_TITLES[protocol]}: the order of mixers is {answer}; {open_pairs} of {len(own)} "
            "comparisons of two mixers are not decided."
        )
    return found


def _page(
    data: StudyData, tables: Mapping[str, Table], pairs: Sequence[PairOrder], refused: Mapping[str, str]
) -> str:
    sections = [
        f"# {data.title}: does a defect of published code change the order of mixers?",
        "\n".join(f"- {each}" for each in order_sentences(pairs))
        or "Too few runs are finished for an interval over runs.",
        f"{counts_sentence(data)} Points are hundredths of a macro average. "
        "95 % intervals cover runs (variance pooled over defects) and documents.",
        "## Teacher",
        tables["teacher"].markdown(),
        *not_counted(refused),
        "## Mixers without defects",
        tables["drops"].markdown(),
        "## Effect of each defect",
        "Mean score of the runs with the defect − mean score of the runs without.",
        "![Effects under both protocols](effects.svg)",
        tables["defects"].markdown(),
        "## Order of two mixers",
        "Differences in points, the mixer that is ahead without defects first. *In every mixer*: all mixers "
        "that can have it have the defect. *Where published*: only those whose published code has it, as in "
        "the published ranking. The order is decided where neither interval contains 0; *shift* is what the "
        "defect does to the difference.",
        tables["orders"].markdown(),
        "## Runs",
        runs_section(data),
    ]
    return "\n\n".join(sections) + "\n"

"""The first section: one row a student, with what it loses where it loses most."""

from dataclasses import dataclass, replace

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.measures.students import BAR, STUDENTS, policy_verdicts, student_rows
from evalsuite.reports.page.tables import Grid, grid
from evalsuite.reports.report import Report
from evalsuite.reports.section import section


@dataclass(frozen=True, slots=True)
class StudentsView:
    """The table, and what it can be filtered by."""

    grid: Grid
    mixers: tuple[str, ...]
    note: str


@section("students", STUDENTS.title, order=10, template="sections/students.html.j2")
def students_section(report: Report) -> StudentsView | None:
    """The table without columns that no student has; None without students."""
    rows = report.of(student_rows)
    if not rows:
        return None
    columns = [
        column
        for column in STUDENTS.columns
        if any(column.text(report, row) != formatting.NOTHING for row in rows)
    ]
    lineages = [lineage_of(report.checkpoints[row.checkpoint]) for row in rows]
    mixers = {each.titles.get(mixer, mixer) for each in lineages for mixer in each.mixers}
    return StudentsView(
        grid(replace(STUDENTS, columns=columns), report), tuple(sorted(mixers)), _note(report)
    )


def _note(report: Report) -> str:
    contexts = sorted({row.context for row in report.of(student_rows) if row.context is not None})
    given = report.of(policy_verdicts)
    policy = f"the default policy, {100 * BAR:g} % in every way" if given is None else given.policy
    note = f"Sorted by the lowest share. Verdicts are those of {policy}"
    if contexts:
        places = " and ".join(formatting.tokens(context) for context in contexts)
        note += f"; needles are those at {places} tokens, the longest context at which the teacher finds half"
    return f"{note}."

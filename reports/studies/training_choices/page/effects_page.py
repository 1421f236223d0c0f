"""Writes the page of a study."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from evalsuite.foundation import counted, write_text
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports.formatting import percent
from evalsuite.reports.studies.training_choices.analysis.effects import (
    best_student,
    drop,
    effects,
    teacher_leads,
)
from evalsuite.reports.studies.training_choices.design import BASE
from evalsuite.reports.studies.training_choices.page.documents import FILE
from evalsuite.reports.studies.training_choices.page.figure import draw, draw_drops
from evalsuite.reports.studies.training_choices.page.reading import StudyData
from evalsuite.reports.studies.training_choices.page.tables import (
    Table,
    base_drops,
    choices_table,
    collapsed_runs,
    decomposition_table,
    decompositions,
    drops_table,
    effects_table,
    exposure_table,
    exposures,
    has_printed_effects,
    lost_leads_table,
    not_counted,
    orders_table,
    runs_table,
    teacher_table,
    with_interval,
    write_tables,
)

PAPER = (
    " *Paper*: the difference of the nearest rows of arXiv 2603.26556, in points; the next column "
    "compares the signs, *not decided* where the interval contains 0."
)


def write_page(data: StudyData, out: Path, refused: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write ``README.md``, a CSV file per table and two figures; return the page.

    Args:
        refused: title of a benchmark that is not admitted → why.
    """
    found = effects(data.scores, data.axes)
    parts = decompositions(data)
    tables = write_tables(
        out,
        teacher_table(data),
        drops_table(data),
        lost_leads_table(data),
        effects_table(data, found),
        choices_table(data),
        orders_table(data),
        decomposition_table(parts),
        exposure_table(exposures(data)),
        runs_table(data),
    )
    write_text(out / "drops.svg", draw_drops(base_drops(data)))
    if found:
        write_text(out / "effects.svg", draw(found))
    page = out / "README.md"
    write_text(page, _page(data, tables, refused, has_printed_effects(found)))
    return page


def _headline(data: StudyData) -> str:
    best = best_student(data.scores, data.hybrids)
    lost = best and drop(data.scores, best.student, units=teacher_leads(data.scores))
    if best is None or lost is None:
        return "Too few runs are finished for an interval over runs."
    kind = "hybrid" if best.student in data.hybrids else "pure student"
    return (
        f"The best {kind} is `{best.student}` (runs of the base: {best.runs}): its drop is "
        f"{with_interval(best.loglikelihood)} points under log-likelihood and "
        f"{with_interval(best.generation)} under generation, on the same documents. {best.finding} Of the "
        f"teacher's lead over chance it has lost {percent(lost.loglikelihood.point)} % under log-likelihood "
        f"and {percent(lost.generation.point)} % under generation, a difference of {with_interval(lost.gap)} "
        "points."
    )


def _shown(table: Table) -> str:
    return table.markdown() if table.rows else "None is known: too few runs are finished."


def _leads(data: StudyData) -> str:
    leads = teacher_leads(data.scores)
    return " and ".join(f"{percent(leads[p])} points under {PROTOCOL_TITLES[p]}" for p in PROTOCOLS)


def _page(data: StudyData, tables: Mapping[str, Table], refused: Mapping[str, str], has_printed: bool) -> str:
    sections = [
        f"# {data.title}: what each protocol says of each choice",
        _headline(data),
        f"{counts_sentence(data)} Points are hundredths of a macro average. "
        "95 % intervals cover runs (variance pooled over arms) and documents.",
        "## Teacher",
        tables["teacher"].markdown(),
        *not_counted(refused),
        "## Drop and gap of the base",
        "![Drop under both protocols, in points](drops.svg)",
        tables["drops"].markdown(),
        "Chance is higher under log-likelihood, so that there is less to lose. The same drops in percent of "
        f"the teacher's lead over chance ({_leads(data)}), of which a student at chance has lost 100:",
        tables["lost_leads"].markdown(),
        "## Effect of each choice",
        "Mean score of the runs with the choice − mean score of the runs that they are compared with."
        + (PAPER if has_printed else ""),
        *(["![Effects under both protocols](effects.svg)"] if tables["effects"].rows else []),
        _shown(tables["effects"]),
        "## Drop and gap of each choice",
        _shown(tables["choices"]),
        "## Order of the choices",
        "Pairs of a student's choices (base included) whose order both protocols decide, all intervals "
        "together at 95 % over runs and documents: in the same order, or opposite (the choice that "
        "log-likelihood prefers / the one that generation prefers). Kendall's τ-b is that of all mean "
        "scores, undecided differences among them.",
        _shown(tables["orders"]),
        "## Where the gap comes from",
        "Points of the gap of the base, mean over runs. Each document that the teacher alone has right under "
        "generation counts for the first cause that applies; the rows sum to the gap.",
        tables["decomposition"].markdown(),
        "## Exposure",
        "Agreement with the tokens of the teacher's own responses: after the teacher's tokens "
        "(teacher-forced), and in the student's own response (free-running). Their difference is what a "
        "student loses because it reads its own continuation.",
        tables["exposure"].markdown(),
        "## Runs",
        runs_section(data),
    ]
    return "\n\n".join(sections) + "\n"


def counts_sentence(data: StudyData) -> str:
    """Return how many runs, documents and benchmarks a page rests on."""
    scores = data.scores
    return (
        f"{sum(map(scores.has, scores.runs))} of {counted(len(scores.runs), 'run')}, "
        f"{counted(len(scores.benchmarks), 'document')} of {counted(len(scores.names), 'benchmark')} "
        "that both protocols read."
    )


def runs_section(data: StudyData) -> str:
    """Return the list of what was trained, collapsed, failed or is missing."""
    scores = data.scores
    documents = f"`{FILE}` of the page of all benchmarks" if data.is_part else f"[`{FILE}`]({FILE})"
    lines = [
        f"- Scores of every run: [`runs.csv`](runs.csv); on every document: {documents}.",
        f"- GPU time of all jobs that ended: {data.gpu_seconds / 60:.0f} minutes.",
    ]
    names = ", ".join(f"`{run.name}`" for run in collapsed_runs(data)) or "none"
    lines.append(f"- Collapsed (loops in more than half of the responses), kept in all tables: {names}.")
    failed = [run for run in scores.missing if run.name in data.reasons]
    lines += [f"- Missing: `{run.name}` ({data.reasons[run.name]})." for run in failed]
    if left := [f"`{run.name}`" for run in scores.missing if run not in failed]:
        lines.append(f"- Missing: {', '.join(left)}.")
    base = {run.student for run in scores.runs if run.arm == BASE and scores.has(run)}
    lines += [
        f"- `{student}` has no finished base, so none of its effects is known."
        for student in scores.students
        if student not in base
    ]
    return "\n".join(lines)

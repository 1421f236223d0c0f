"""Tables of a study's page; scores and effects in points (hundredths)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalsuite.foundation import write_csv
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports.formatting import NOTHING, contrast, percent, plain, signed
from evalsuite.reports.markdown import table
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.training_choices.analysis.choices import order_agreement
from evalsuite.reports.studies.training_choices.analysis.decomposition import (
    CAUSES,
    OFFSETS,
    Agreement,
    causes,
    collapsed,
    decompose,
    exposure,
)
from evalsuite.reports.studies.training_choices.analysis.effects import (
    Drop,
    Effect,
    drop,
    teacher_leads,
    verdict,
)
from evalsuite.reports.studies.training_choices.analysis.paper_effects import printed_effect
from evalsuite.reports.studies.training_choices.design import BASE, TEACHER, StudyRun
from evalsuite.reports.studies.training_choices.page.reading import StudyData

POSITIONS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48)
"""Positions of a response that the table of exposure shows."""


@dataclass(frozen=True)
class Table:
    """A table for Markdown and CSV."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table."""
        return table(list(self.columns), [list(row) for row in self.rows])


def write_tables(out: Path, *tables: Table) -> dict[str, Table]:
    """Write tables as CSV into the folder of their page; return them by name."""
    for each in tables:
        write_csv(out / f"{each.name}.csv", each.columns, each.rows)
    return {each.name: each for each in tables}


def not_counted(refused: Mapping[str, str]) -> list[str]:
    """The list of benchmarks that are not admitted, by title, and why; nothing without any."""
    lines = [f"- Not counted: {title}: {why}." for title, why in refused.items()]
    return ["\n".join(lines)] if lines else []


def with_interval(interval: Interval) -> str:
    """Return a difference of scores in points, with its 95 % interval."""
    return contrast(100 * interval.point, 100 * interval.low, 100 * interval.high)


def teacher_table(data: StudyData) -> Table:
    """The teacher's score on every benchmark, and its share of responses that name an answer."""
    rows = []
    for index, name in enumerate(data.scores.names):
        here = data.scores.benchmarks == index
        levels = [percent(data.scores.values[p][TEACHER][here].mean()) for p in PROTOCOLS]
        named = np.array([bool(each) for each in data.responses[TEACHER].extracted[here]]).mean()
        rows.append((data.titles[name], str(int(here.sum())), *levels, percent(float(named))))
    return Table(
        "teacher", ("benchmark", "documents", "log-likelihood", "generation", "names an answer"), tuple(rows)
    )


def runs_table(data: StudyData) -> Table:
    """Score of the teacher and of every finished run on every benchmark, in points."""
    scores = data.scores
    names = (TEACHER, *(run.name for run in scores.runs if scores.has(run)))
    rows = []
    for name in names:
        for index, benchmark in enumerate(scores.names):
            here = scores.benchmarks == index
            levels = (f"{100 * scores.values[p][name][here].mean():.2f}" for p in PROTOCOLS)
            rows.append((name, benchmark, str(int(here.sum())), *levels))
    return Table("runs", ("run", "benchmark", "documents", *PROTOCOLS), tuple(rows))


def base_drops(data: StudyData) -> list[Drop]:
    """Drop of the base of every student that has one."""
    found = (drop(data.scores, student) for student in data.scores.students)
    return [each for each in found if each is not None]


def drops_table(data: StudyData) -> Table:
    """Drop of every student's base under both protocols, and its gap."""
    rows = []
    for found in base_drops(data):
        intervals = (found.loglikelihood, found.generation, found.gap)
        rows.append((f"`{found.student}`", str(found.runs), *map(with_interval, intervals)))
    columns = ("student", "runs", "drop, log-likelihood", "drop, generation", "gap")
    return Table("drops", columns, tuple(rows))


def lost_leads_table(data: StudyData) -> Table:
    """The same drops in percent of the teacher's lead over chance."""
    leads = teacher_leads(data.scores)
    rows = []
    for student in data.scores.students:
        if (found := drop(data.scores, student, units=leads)) is not None:
            intervals = (found.loglikelihood, found.generation, found.gap)
            rows.append((f"`{student}`", *map(with_interval, intervals)))
    columns = ("student", "lost, log-likelihood", "lost, generation", "difference")
    return Table("lost_leads", columns, tuple(rows))


def effects_table(data: StudyData, found: Sequence[Effect]) -> Table:
    """Every effect under both protocols, with the printed one where a paper prints any of them."""
    rows = []
    has_printed = has_printed_effects(found)
    for effect in found:
        cells = []
        for protocol in PROTOCOLS:
            interval, printed = effect.under(protocol), printed_effect(effect.arm, protocol)
            cells.append(with_interval(interval))
            if printed is not None:
                cells += [signed(printed.value), verdict(interval, printed.value)]
            elif has_printed:
                cells += [NOTHING, NOTHING]
        student = "mean" if effect.student is None else f"`{effect.student}`"
        axis = data.axes[effect.axis]
        instead = axis.base if axis.compared_with == BASE else axis.compared_with
        rows.append((f"{effect.axis}: {effect.arm} for {instead}", student, *cells))
    columns = ["choice", "student"]
    for protocol in PROTOCOLS:
        title = PROTOCOL_TITLES[protocol]
        columns += [title, *([f"paper, {title}", f"verdict, {title}"] if has_printed else [])]
    return Table("effects", tuple(columns), tuple(rows))


def has_printed_effects(found: Sequence[Effect]) -> bool:
    """Whether the paper prints an effect of any of these choices."""
    return any(printed_effect(effect.arm, protocol) for effect in found for protocol in PROTOCOLS)


def orders_table(data: StudyData) -> Table:
    """Kendall's τ-b of the choices' orders, and the pairs that both protocols decide."""
    rows = []
    for student in data.scores.students:
        found = order_agreement(data.scores, student)
        if found is not None:
            tau = NOTHING if found.tau is None else plain(found.tau, 2)
            turned = "; ".join(f"`{first}` / `{second}`" for first, second in found.opposite) or "none"
            counts = (found.choices, found.pairs, found.same, len(found.opposite))
            rows.append((f"`{student}`", *map(str, counts), turned, tau))
    columns = ("student", "choices", "pairs", "same", "opposite", "preferred instead", "Kendall's τ-b")
    return Table("orders", columns, tuple(rows))


def choices_table(data: StudyData) -> Table:
    """Drop and gap of every choice of every student."""
    rows = []
    for student in data.scores.students:
        for arm in dict.fromkeys(run.arm for run in data.scores.runs if run.student == student):
            if (found := drop(data.scores, student, arm)) is not None:
                intervals = (found.loglikelihood, found.generation, found.gap)
                rows.append((f"`{student}`", f"`{arm}`", str(found.runs), *map(with_interval, intervals)))
    columns = ("student", "choice", "runs", "drop, log-likelihood", "drop, generation", "gap")
    return Table("choices", columns, tuple(rows))


def decompositions(data: StudyData) -> dict[str, dict[str, float]]:
    """Student → part → points of the gap of its base, mean over runs; the parts sum to the gap."""
    scores = data.scores
    teacher: dict[str, np.ndarray] = {p: scores.values[p][TEACHER] for p in PROTOCOLS}
    found: dict[str, dict[str, float]] = {}
    for student in data.scores.students:
        runs = scores.of(student, BASE)
        for run in runs:
            own = data.responses[run.name]
            cause = causes(own, data.responses[TEACHER], data.prompts, scores.benchmarks)
            values: dict[str, np.ndarray] = {p: scores.values[p][run.name] for p in PROTOCOLS}
            for part in decompose(values, teacher, cause, scores.weights):
                sums = found.setdefault(student, dict.fromkeys((*CAUSES, *OFFSETS), 0.0))
                sums[part.name] += part.share / len(runs)
    return found


def decomposition_table(parts: Mapping[str, Mapping[str, float]]) -> Table:
    """One row per part, one column per student; the last row is their sum, the gap."""
    students = tuple(parts)
    rows = [
        (name, *(signed(100 * parts[student][name]) for student in students)) for name in (*CAUSES, *OFFSETS)
    ]
    rows.append(("**gap**", *(f"**{signed(100 * sum(parts[student].values()))}**" for student in students)))
    return Table("decomposition", ("part", *(f"`{student}`" for student in students)), tuple(rows))


def exposures(data: StudyData) -> dict[str, list[Agreement]]:
    """Student → agreement by position over the runs of its base."""
    return {
        student: exposure([row for run in data.scores.of(student, BASE) for row in data.exposure[run.name]])
        for student in data.scores.students
        if data.scores.of(student, BASE)
    }


def exposure_table(found: Mapping[str, Sequence[Agreement]]) -> Table:
    """Teacher-forced and free-running agreement at some positions."""
    rows = []
    for student, agreements in found.items():
        for each in agreements:
            if each.position in POSITIONS:
                shares = (percent(each.forced), percent(each.free), signed(100 * (each.forced - each.free)))
                counts = (str(each.position + 1), str(each.documents))
                rows.append((f"`{student}`", *counts, *shares, plain(each.logprob, 3)))
    columns = (
        "student",
        "token",
        "responses",
        "teacher-forced",
        "free-running",
        "exposure",
        "log-probability",
    )
    return Table("exposure", columns, tuple(rows))


def collapsed_runs(data: StudyData) -> list[StudyRun]:
    """Finished runs that loop in more than half of their responses."""
    return [
        run
        for run in data.scores.runs
        if data.scores.has(run) and collapsed(data.responses[run.name].outcome)
    ]

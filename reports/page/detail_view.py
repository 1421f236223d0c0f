"""Tiles, pairs, lineage, environment: the rest of the page."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalsuite.reports import words
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class Tile:
    """One large figure."""

    figure: str
    unit: str
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class PairLine:
    """Two checkpoints."""

    first: str
    second: str
    protocol: str
    difference: str
    interval: str
    contest: str
    mcnemar: str
    holm: str
    detectable: str
    kind: str
    sort: float
    sort_holm: float


@dataclass(frozen=True, slots=True)
class LineageView:
    """Where a checkpoint comes from."""

    label: str
    role: str
    facts: tuple[tuple[str, str], ...]
    stages: tuple[tuple[str, str, str], ...]
    """Name, objective, tokens."""


def tiles(report: Report) -> list[Tile]:
    """Up to four figures that sum the report up."""
    found = [_best(report), _largest_gap(report), _order_changes(report), _needle_reach(report)]
    chosen = [tile for tile in found if tile is not None]
    if len(chosen) < 4:
        chosen.append(_size_of_evidence(report))
    return chosen


def _best(report: Report) -> Tile | None:
    best = words.best_student(report)
    if best is None or best.recovery.interval is None:
        return None
    label = report.subjects[best.subject].label
    how = "answers ranked" if best.protocol == "loglikelihood" else "answers written"
    text = f"best recovery, {how}: {label} ({words.span(best.recovery.interval)})"
    low, high = best.rank_low, best.rank_high
    if low is not None and high is not None and high > low:
        text += f"; ranks {low} to {high} are not told apart"
    return Tile(words.percent(best.recovery.point), "%", text, "#recovery")


def _largest_gap(report: Report) -> Tile | None:
    rows = [row for row in report.gaps if row.benchmark == ALL]
    if not rows:
        return None
    if all(row.floored and row.gap.low <= 0 for row in rows):
        return _best_written(report)
    row = max(rows, key=lambda row: row.gap.point)
    label = report.subjects[row.subject].label
    text = f"points more lost when written than when ranked: {label} ({words.span(row.gap)}), the largest gap"
    return Tile(words.signed(100 * row.gap.point), "pt", text, "#gap")


def _best_written(report: Report) -> Tile | None:
    """What stands in for the gap where the teacher writes too badly for one to show."""
    rows = [row for s in report.students() if (row := report.average(s, "generation")) is not None]
    rows = [row for row in rows if row.rank is not None]
    if not rows:
        return None
    best = max(rows, key=lambda row: row.recovery.point or 0.0)
    assert best.recovery.interval is not None
    label = report.subjects[best.subject].label
    text = f"best recovery, answers written: {label} ({words.span(best.recovery.interval)})"
    return Tile(words.percent(best.recovery.point), "%", text, "#recovery")


def _order_changes(report: Report) -> Tile | None:
    agreement = report.agreement
    if agreement is None or agreement.pairs == 0:
        return None
    tau = "" if agreement.tau is None else f" (τ {words.plain(agreement.tau, 2)})"
    proven = sum(inversion.proven for inversion in agreement.inversions)
    text = f"pairs of students change order between the protocols{tau}; {proven} of the changes are proven"
    return Tile(f"{len(agreement.inversions)} of {agreement.pairs}", "", text, "#ranks")


def _needle_reach(report: Report) -> Tile | None:
    """The longest context at which a student still finds half of the needles of the first such benchmark.

    Written answers count where there are any: a needle that is ranked first has not been retrieved yet.
    """
    students = report.students()
    for benchmark in report.benchmarks:
        found = [
            row
            for row in report.scores
            if row.benchmark == benchmark.name and row.context is not None and row.subject in students
        ]
        if not found:
            continue
        protocol = "generation" if any(row.protocol == "generation" for row in found) else found[0].protocol
        rows = [row for row in found if row.protocol == protocol]
        place = f"({benchmark.title}, {words.PROTOCOL_WORDS[protocol]})"
        reach = [row for row in rows if row.score.point >= 0.5]
        if not reach:
            shortest = min(row.context for row in rows if row.context is not None)
            text = f"needles: no student finds half of them, even at {words.tokens(shortest)} tokens {place}"
            return Tile("0", "", text, "#needles")
        longest = max(row.context for row in reach if row.context is not None)
        here = [row for row in reach if row.context == longest]
        best = max(here, key=lambda row: row.score.point)
        who = report.subjects[best.subject].label
        if len(here) > 1:
            who += f" and {len(here) - 1} more"
        text = f"longest context with half of the needles found by a student: {who} {place}"
        return Tile(words.tokens(longest), "", text, "#needles")
    return None


def _size_of_evidence(report: Report) -> Tile:
    documents = sum(len(cell.documents) for cell in report.panel.cells)
    text = f"questions over {len(report.benchmarks)} benchmarks, the same for every checkpoint"
    return Tile(words.count(documents), "", text, "#method")


def pair_lines(report: Report) -> list[PairLine]:
    """Any two checkpoints, per protocol; the least certain differences are as visible as the largest."""
    return [
        PairLine(
            first=report.subjects[row.first].label,
            second=report.subjects[row.second].label,
            protocol=words.PROTOCOL_WORDS[row.protocol],
            difference=words.signed(100 * row.difference.point),
            interval=words.span(row.difference),
            contest=f"{words.count(row.wins)} : {words.count(row.losses)}",
            mcnemar=words.NOTHING if row.mcnemar is None else p_value(row.mcnemar),
            holm=p_value(row.p_holm),
            detectable=words.NOTHING if row.detectable is None else f"{100 * row.detectable:.1f}",
            kind="tie" if not row.proven else "gain" if row.difference.point > 0 else "loss",
            sort=row.difference.point,
            sort_holm=row.p_holm,
        )
        for row in report.pairs
    ]


def p_value(p: float) -> str:
    """A p-value to two digits, never ``0.00``."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def lineages(report: Report) -> list[LineageView]:
    """The lineage of every checkpoint."""
    views = []
    for subject in report.subjects:
        lineage, plan = lineage_of(subject.plan), subject.plan
        facts = [
            ("weights", plan.weights_id),
            ("path", plan.path),
            ("parameters", words.count(plan.parameters) if plan.parameters else ""),
            ("mixers", lineage.describe_mixers()),
            ("recipe", " ".join(part for part in (lineage.recipe, lineage.recipe_hash) if part)),
            ("seed", "" if lineage.seed is None else str(lineage.seed)),
            ("teacher", " ".join(part for part in (lineage.teacher_path, lineage.teacher_id) if part)),
            ("tokens", words.count(lineage.tokens) if lineage.tokens else ""),
            ("training", "" if lineage.complete else "a checkpoint along the way"),
        ]
        stages = tuple(
            (
                stage.name,
                stage.objective,
                words.NOTHING if stage.tokens is None else words.count(stage.tokens),
            )
            for stage in lineage.stages
        )
        views.append(LineageView(subject.label, plan.role, tuple(f for f in facts if f[1]), stages))
    return views


def environment_facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The environment as lines of text, nested objects in one line of JSON each."""
    return [
        (str(key), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))
        for key, value in environment.items()
        if value not in ({}, [], None, "")
    ]


def meta(report: Report) -> list[str]:
    """The line under the headline."""
    students = len(report.students())
    parts = []
    teachers = [report.subjects[i] for i in report.teachers]
    if teachers:
        parts.append("teacher " + ", ".join(teacher.label for teacher in teachers))
    parts.append(f"{students} student{'s' if students != 1 else ''}{_tokens_each(report)}")
    seeds = max((len(cell.seeds) for cell in report.panel.cells), default=1)
    benchmarks = len(report.benchmarks)
    parts.append(f"{benchmarks} benchmark{'s' if benchmarks != 1 else ''}")
    if seeds > 1:
        parts.append(f"{seeds} seeds")
    parts.append(f"{words.count(report.panel.records)} records")
    devices = {name for environment in report.environments for name in _devices(environment)}
    parts += sorted(devices)
    parts.append(max(plan.created for plan in report.panel.merged.plans)[:10])
    return parts


def _tokens_each(report: Report) -> str:
    counts = {lineage_of(report.subjects[i].plan).tokens for i in report.students()}
    only = counts.pop() if len(counts) == 1 else None
    return f", {words.tokens(only)} tokens each" if only else ""


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """Other machines that answered, where there were some."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _devices(environment: Mapping[str, Any]) -> list[str]:
    machines = [environment, *_mappings(environment.get("answered_on"))]
    found = {str(name) for machine in machines for name in machine.get("accelerators") or ()}
    if found:
        return sorted(found)
    device = environment.get("device")
    return [str(device)] if device else []

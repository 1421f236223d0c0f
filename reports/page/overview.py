"""Overview: the line below the headline and the tiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class Tile:
    """One large figure."""

    figure: str
    unit: str
    text: str
    href: str


def tiles(report: Report) -> list[Tile]:
    """Four key figures of the report, or fewer if it has no more."""
    found = [
        _best(report),
        _retained(report),
        _largest_gap(report),
        _context_reach(report),
        _rank_changes(report),
        _documents(report),
    ]
    return [tile for tile in found if tile is not None][:4]


def _best(report: Report) -> Tile | None:
    best = formatting.best_student(report)
    if best is None or best.recovery.interval is None:
        return None
    label = report.checkpoints[best.checkpoint].label
    protocol = formatting.PROTOCOL_TITLES[best.protocol]
    text = f"best recovery under {protocol}: {label} ({formatting.span(best.recovery.interval)})"
    low, high = best.rank_low, best.rank_high
    if low is not None and high is not None and high > low:
        text += f"; ranks {low} to {high} do not differ significantly"
    return Tile(formatting.percent(best.recovery.point), "%", text, "#recovery")


def _retained(report: Report) -> Tile | None:
    """What the best student kept of its teacher's right answers."""
    best = formatting.best_student(report)
    if best is None:
        return None
    row = agreement_with_teacher(report, best.checkpoint, best.protocol, best.scope)
    if row is None or row.retained.interval is None:
        return None
    label = report.checkpoints[best.checkpoint].label
    text = f"of its teacher's right answers stay right: {label} ({formatting.span(row.retained.interval)})"
    if row.agreement.point is not None:
        text += f"; it makes the same choice on {formatting.percent(row.agreement.point)} %"
    return Tile(formatting.percent(row.retained.point), "%", text, "#retention")


def _largest_gap(report: Report) -> Tile | None:
    rows = [row for row in report.gaps if row.benchmark == ALL]
    if not rows:
        return None
    if all(row.teacher_below_chance and row.gap.low <= 0 for row in rows):
        return _best_under_generation(report)
    row = max(rows, key=lambda row: row.gap.point)
    label = report.checkpoints[row.checkpoint].label
    text = f"largest gap between generation and log-likelihood: {label} ({formatting.span(row.gap)})"
    return Tile(formatting.signed(100 * row.gap.point), "pt", text, "#gap")


def _best_under_generation(report: Report) -> Tile | None:
    """Replaces the gap if the teacher scores below chance under generation."""
    rows = [row for s in report.students() if (row := report.leading_average(s, "generation")) is not None]
    rows = [row for row in rows if row.rank is not None]
    if not rows:
        return None
    best = max(rows, key=lambda row: row.recovery.point or 0.0)
    assert best.recovery.interval is not None
    label = report.checkpoints[best.checkpoint].label
    text = f"best recovery under generation: {label} ({formatting.span(best.recovery.interval)})"
    return Tile(formatting.percent(best.recovery.point), "%", text, "#recovery")


def _rank_changes(report: Report) -> Tile | None:
    agreement = report.agreement
    if agreement is None or agreement.pairs == 0:
        return None
    tau = "" if agreement.tau is None else f" (τ {formatting.plain(agreement.tau, 2)})"
    proven = sum(inversion.proven for inversion in agreement.inversions)
    text = f"student pairs change order between the protocols{tau}; {proven} of the changes are significant"
    return Tile(f"{len(agreement.inversions)} of {agreement.pairs}", "", text, "#ranks")


def _context_reach(report: Report) -> Tile | None:
    """The longest context at which a student scores 50 %, on the first benchmark with contexts.

    Generation takes precedence: choosing an answer among given options is not retrieval.
    """
    students = report.students()
    for benchmark in report.benchmarks:
        found = [
            row
            for row in report.scores
            if row.benchmark == benchmark.name and row.context is not None and row.checkpoint in students
        ]
        if not found:
            continue
        protocol = "generation" if any(row.protocol == "generation" for row in found) else found[0].protocol
        rows = [row for row in found if row.protocol == protocol]
        place = f"({benchmark.title}, {formatting.PROTOCOL_TITLES[protocol]})"
        reach = [row for row in rows if row.score.point >= 0.5]
        if not reach:
            shortest = min(row.context for row in rows if row.context is not None)
            text = f"no student scores 50 % at {formatting.tokens(shortest)} tokens {place}"
            return Tile("0", "", text, "#contexts")
        longest = max(row.context for row in reach if row.context is not None)
        here = [row for row in reach if row.context == longest]
        best = max(here, key=lambda row: row.score.point)
        who = report.checkpoints[best.checkpoint].label
        if len(here) > 1:
            who += f" and {len(here) - 1} more"
        text = f"longest context at which a student scores 50 %: {who} {place}"
        return Tile(formatting.tokens(longest), "", text, "#contexts")
    return None


def _documents(report: Report) -> Tile:
    documents = report.documents
    text = f"documents of {formatting.benchmarks(report)} benchmarks, the same for every checkpoint"
    return Tile(formatting.count(documents), "", text, "#method")


def meta(report: Report) -> list[str]:
    """The line under the headline."""
    students = len(report.students())
    parts = []
    teachers = [report.checkpoints[i] for i in report.teachers]
    if teachers:
        parts.append("teacher " + ", ".join(teacher.label for teacher in teachers))
    parts.append(f"{students} student{'s' if students != 1 else ''}{_tokens_each(report)}")
    seeds = max((len(cell.seeds) for cell in report.tensor.cells), default=1)
    parts.append(f"{formatting.benchmarks(report)} benchmark{'s' if len(report.benchmarks) != 1 else ''}")
    if seeds > 1:
        parts.append(f"{seeds} seeds")
    parts.append(f"{formatting.count(report.tensor.score_rows)} scores")
    devices = {name for environment in report.environments for name in _devices(environment)}
    parts += sorted(devices)
    parts.append(max(plan.created for plan in report.tensor.merged.plans)[:10])
    return parts


def _tokens_each(report: Report) -> str:
    counts = {lineage_of(report.checkpoints[i].plan).tokens for i in report.students()}
    only = counts.pop() if len(counts) == 1 else None
    return f", {formatting.tokens(only)} tokens each" if only else ""


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; empty for any other value."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _devices(environment: Mapping[str, Any]) -> list[str]:
    # Published samples have the environments of all of their runs.
    if runs := _mappings(environment.get("runs")):
        return [name for run in runs for name in _devices(run)]
    machines = [environment, *_mappings(environment.get("inference_hosts"))]
    found = {str(name) for machine in machines for name in machine.get("accelerators") or ()}
    if found:
        return sorted(found)
    device = environment.get("device")
    return [str(device)] if device else []

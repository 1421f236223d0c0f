"""Students that differ only by their training seed: how much of a difference is luck of the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.panel import Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """Checkpoints of one recipe, mixers and token count, trained with several seeds."""

    subjects: tuple[int, ...]
    protocol: str
    mean: float
    """Of their recoveries."""
    deviation: float
    """Standard deviation of their recoveries between training runs; two of them make a tie."""


def replicate_families(panel: Panel) -> list[tuple[int, ...]]:
    """Students of one teacher, recipe, mixers and token count that were trained with different seeds."""
    families: dict[tuple[object, ...], list[int]] = {}
    for index, subject in enumerate(panel.subjects):
        lineage = lineage_of(subject.plan)
        if subject.teacher is None or lineage.seed is None or not lineage.mixers or lineage.recipe is None:
            continue
        stages = tuple((stage.name, stage.tokens) for stage in lineage.stages)
        key = (subject.teacher, lineage.recipe, lineage.mixers, stages, lineage.tokens)
        families.setdefault(key, []).append(index)
    found = []
    for members in families.values():
        seeds = {lineage_of(panel.subjects[i].plan).seed for i in members}
        if len(members) > 1 and len(seeds) == len(members):
            found.append(tuple(members))
    return found


def replicates_of(panel: Panel, averages: Sequence[AverageRow]) -> list[Replicates]:
    """Groups of two or more such students, per protocol."""
    found = []
    for members in replicate_families(panel):
        for protocol in dict.fromkeys(row.protocol for row in averages):
            points = [
                row.recovery.point
                for row in averages
                if row.subject in members
                and row.protocol == protocol
                and row.scope == ALL
                and not row.missing
            ]
            known = [point for point in points if point is not None]
            if len(known) == len(members):
                found.append(
                    Replicates(
                        subjects=members,
                        protocol=protocol,
                        mean=sum(known) / len(known),
                        deviation=stdev(known),
                    )
                )
    return found

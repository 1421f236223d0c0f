"""Replicates: students that differ only by their training seed, and the spread of their recoveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """Checkpoints with the same recipe, mixers and token count, trained with several seeds."""

    checkpoints: tuple[int, ...]
    protocol: str
    mean: float
    """Mean of their recoveries."""
    deviation: float
    """Standard deviation of their recoveries over training runs; recoveries within two of them are a tie."""


def replicate_families(tensor: ResultTensor) -> list[tuple[int, ...]]:
    """Group the students of one teacher, recipe, mixers and token count that have different seeds."""
    families: dict[tuple[object, ...], list[int]] = {}
    for index, checkpoint in enumerate(tensor.checkpoints):
        lineage = lineage_of(checkpoint.plan)
        if checkpoint.teacher is None or lineage.seed is None or not lineage.mixers or lineage.recipe is None:
            continue
        stages = tuple((stage.name, stage.tokens) for stage in lineage.stages)
        key = (checkpoint.teacher, lineage.recipe, lineage.mixers, stages, lineage.tokens)
        families.setdefault(key, []).append(index)
    found = []
    for members in families.values():
        seeds = {lineage_of(tensor.checkpoints[i].plan).seed for i in members}
        if len(members) > 1 and len(seeds) == len(members):
            found.append(tuple(members))
    return found


def replicates_of(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[Replicates]:
    """Mean and deviation per family of replicates and protocol, for families with complete averages."""
    found = []
    for members in replicate_families(tensor):
        for protocol in dict.fromkeys(row.protocol for row in averages):
            points = [
                row.recovery.point
                for row in averages
                if row.checkpoint in members
                and row.protocol == protocol
                and row.scope == ALL
                and not row.missing
            ]
            known = [point for point in points if point is not None]
            if len(known) == len(members):
                found.append(
                    Replicates(
                        checkpoints=members,
                        protocol=protocol,
                        mean=sum(known) / len(known),
                        deviation=stdev(known),
                    )
                )
    return found

"""Ablations: recipes that differ in one setting, each compared with the student that differs only in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import GapRow, PairRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.statistics.seeds import over_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """One difference between two recipes, seed by seed."""

    seeds: tuple[int, ...]
    """Seeds that both recipes were trained with."""
    differences: tuple[float, ...]
    """One difference per seed."""
    mean: Interval
    """Mean over training runs, for fixed documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One student of a recipe named `base.name`."""

    checkpoint: int
    runs: tuple[int, ...]
    """All students of the variant, which differ only by seed; `checkpoint` is the first of them."""
    name: str
    """Name of the variant; empty for the base recipe."""
    partner: int | None
    """Reference student: that of the longest variant name that is a prefix of this one, else the base."""
    differences: dict[str, Interval]
    """Protocol → this − partner, macro average over their common benchmarks."""
    proven: dict[str, bool]
    """Protocol → whether the difference is proven, after Holm's correction over all pairs."""
    repeats: dict[str, Repeats]
    """Protocol → the same for all common seeds; empty with fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A base recipe and its variants, with one teacher."""

    base: str
    members: tuple[Variant, ...]
    both: tuple[int, ...]
    """Checkpoints with scores for everything that was evaluated under both protocols."""
    tau: float | None
    """Kendall's τ-b between the protocols over `both`, on the same documents; None for fewer than three."""


_Group = dict[tuple[str, str | None], dict[int, int]]
"""(Variant name, mixer) → seed → student."""


def ablations_of(tensor: ResultTensor, pairs: Sequence[PairRow], gaps: Sequence[GapRow]) -> list[Ablation]:
    """Group the finished students whose recipes are named `base` and `base.variant`.

    Replicates are represented by the lowest seed; the base recipe by students of a mixer that a variant has.
    """
    found: dict[tuple[int, str], _Group] = {}
    for index, checkpoint in enumerate(tensor.checkpoints):
        lineage = lineage_of(checkpoint)
        if checkpoint.teacher is None or lineage.recipe is None or not lineage.complete:
            continue
        base, _, name = lineage.recipe.partition(".")
        group = found.setdefault((checkpoint.teacher, base), {})
        group.setdefault((name, lineage.main_mixer), {}).setdefault(lineage.seed or 0, index)
    return [
        _variation(base, group, pairs, gaps)
        for (_, base), group in found.items()
        if sum(1 for name, _ in group if name) > 0
    ]


def _variation(
    base: str,
    group: _Group,
    pairs: Sequence[PairRow],
    gaps: Sequence[GapRow],
) -> Ablation:
    mixers = {mixer for name, mixer in group if name}
    members = []
    for (name, mixer), runs in group.items():
        if not name and mixer not in mixers:
            continue
        others = _partner(group, name, mixer)
        checkpoint = runs[min(runs)]
        partner = others[min(others)] if others else None
        members.append(
            Variant(
                checkpoint=checkpoint,
                runs=tuple(runs[seed] for seed in sorted(runs)),
                name=name,
                partner=partner,
                differences={} if partner is None else _differences(pairs, checkpoint, partner),
                proven={
                    row.protocol: row.proven
                    for row in pairs
                    if {row.first, row.second} == {checkpoint, partner}
                },
                repeats=_repeats(pairs, runs, others),
            )
        )
    rows = {row.checkpoint: row for row in gaps if row.benchmark == ALL}
    most = max((rows[m.checkpoint].documents for m in members if m.checkpoint in rows), default=0)
    both = [m.checkpoint for m in members if m.checkpoint in rows and rows[m.checkpoint].documents == most]
    tau = None
    if len(both) > 2:
        tau = rank_agreement(
            [rows[s].loglikelihood["student"] for s in both], [rows[s].generation["student"] for s in both]
        ).tau
    return Ablation(base=base, members=tuple(members), both=tuple(both), tau=tau)


def _partner(group: _Group, name: str, mixer: str | None) -> dict[int, int]:
    """Seed → student of the reference recipe with the same mixer; empty if there is none."""
    if not name:
        return {}
    shorter = [
        other
        for other, its in group
        if its == mixer and other != name and (other == "" or name.startswith(f"{other}-"))
    ]
    return group[max(shorter, key=len), mixer] if shorter else {}


def _differences(pairs: Sequence[PairRow], checkpoint: int, partner: int) -> dict[str, Interval]:
    found = {}
    for row in pairs:
        if (row.first, row.second) == (checkpoint, partner):
            found[row.protocol] = row.difference
        elif (row.second, row.first) == (checkpoint, partner):
            found[row.protocol] = row.difference.scaled(-1)
    return found


def _repeats(pairs: Sequence[PairRow], runs: dict[int, int], others: dict[int, int]) -> dict[str, Repeats]:
    seeds = sorted(runs.keys() & others.keys())
    each = [_differences(pairs, runs[seed], others[seed]) for seed in seeds]
    found = {}
    for protocol in dict.fromkeys(protocol for differences in each for protocol in differences):
        if len(each) < 2 or not all(protocol in differences for differences in each):
            continue
        points = tuple(differences[protocol].point for differences in each)
        found[protocol] = Repeats(seeds=tuple(seeds), differences=points, mean=over_runs(points))
    return found

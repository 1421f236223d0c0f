"""Recipes that change one thing: each beside the student that differs from it by this alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.reports.analysis.rows import GapRow, PairRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.panel import Panel
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.kendall import rank_agreement
from evalsuite.reports.statistics.seeds import over_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The same difference, seed by seed."""

    seeds: tuple[int, ...]
    """Those that both recipes were trained with."""
    differences: tuple[float, ...]
    """Of each."""
    mean: Interval
    """Over training runs, documents taken as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One student of a recipe `base.name`."""

    subject: int
    runs: tuple[int, ...]
    """All students of it, which differ by their seed; `subject` is the first of them."""
    name: str
    """What the recipe changes; empty for the plain one."""
    partner: int | None
    """The student that it is compared with: the longest variant that its name begins with, else the plain."""
    differences: dict[str, Interval]
    """Protocol → this − partner, macro average over everything that both answered."""
    repeats: dict[str, Repeats]
    """Protocol → the same for all seeds; empty where only one pair shares its seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A recipe and its variants, with one teacher."""

    base: str
    members: tuple[Variant, ...]
    both: tuple[int, ...]
    """Those that answered everything that was asked under both protocols."""
    tau: float | None
    """Kendall's τ-b of the two protocols over `both`, on the same documents; None for fewer than three."""


_Group = dict[tuple[str, str | None], dict[int, int]]
"""What is changed and the mixer → seed → student."""


def variations_of(panel: Panel, pairs: Sequence[PairRow], gaps: Sequence[GapRow]) -> list[Variation]:
    """Groups of finished students whose recipes are called `base` and `base.variant`.

    Of students that differ by seed alone the lowest stands here; of the plain recipe, those whose mixer a
    variant has.
    """
    found: dict[tuple[int, str], _Group] = {}
    for index, subject in enumerate(panel.subjects):
        lineage = lineage_of(subject.plan)
        if subject.teacher is None or lineage.recipe is None or not lineage.complete:
            continue
        base, _, name = lineage.recipe.partition(".")
        group = found.setdefault((subject.teacher, base), {})
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
) -> Variation:
    mixers = {mixer for name, mixer in group if name}
    members = []
    for (name, mixer), runs in group.items():
        if not name and mixer not in mixers:
            continue
        others = _partner(group, name, mixer)
        subject = runs[min(runs)]
        partner = others[min(others)] if others else None
        members.append(
            Variant(
                subject=subject,
                runs=tuple(runs[seed] for seed in sorted(runs)),
                name=name,
                partner=partner,
                differences={} if partner is None else _differences(pairs, subject, partner),
                repeats=_repeats(pairs, runs, others),
            )
        )
    rows = {row.subject: row for row in gaps if row.benchmark == ALL}
    most = max((rows[m.subject].documents for m in members if m.subject in rows), default=0)
    both = [m.subject for m in members if m.subject in rows and rows[m.subject].documents == most]
    tau = None
    if len(both) > 2:
        tau = rank_agreement(
            [rows[s].ranked["student"] for s in both], [rows[s].written["student"] for s in both]
        ).tau
    return Variation(base=base, members=tuple(members), both=tuple(both), tau=tau)


def _partner(group: _Group, name: str, mixer: str | None) -> dict[int, int]:
    """Seed → student of the recipe to compare with, among those of the same mixer; empty if there is none."""
    if not name:
        return {}
    shorter = [
        other
        for other, its in group
        if its == mixer and other != name and (other == "" or name.startswith(f"{other}-"))
    ]
    return group[max(shorter, key=len), mixer] if shorter else {}


def _differences(pairs: Sequence[PairRow], subject: int, partner: int) -> dict[str, Interval]:
    found = {}
    for row in pairs:
        if (row.first, row.second) == (subject, partner):
            found[row.protocol] = row.difference
        elif (row.second, row.first) == (subject, partner):
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

"""Requests count once: of benchmarks whose requests coincide, one enters an average.

`lambada_last_word` under log-likelihood is 500 requests of LAMBADA, `arc_easy_text` is 500 of ARC-Easy with
another metric. An average over all of them would weigh LAMBADA twice. A request is its prompt hash, which
covers the context and all choices; the metric is no part of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from evalsuite.foundation.taxonomy import PROTOCOL_TITLES
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.statistics.hypothesis_tests import holm

COINCIDES = 0.5
"""Share of the smaller benchmark's requests that the larger has, from which the two are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRequests:
    """Requests that a benchmark has in common with one of at least as many requests."""

    benchmark: str
    other: str
    """The benchmark with more requests; of equally many, the first by name."""
    protocol: str
    context: int | None
    other_context: int | None
    documents: int
    """Documents of `benchmark` whose requests `other` has."""
    of: int
    """Documents of `benchmark`."""
    checkpoints: tuple[int, ...]
    """Those that have both."""

    @property
    def counts_once(self) -> bool:
        """Whether `benchmark` counts with `other` wherever both are averaged."""
        return self.documents >= COINCIDES * self.of


class Counting:
    """Which cells count with which others, from the requests of all cells."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Compare the requests of every two benchmarks of a protocol."""
        # Of equally many requests the name decides: the order of runs and plans must change no number.
        larger_first = sorted(cells, key=lambda cell: (-len(cell.documents), cell.benchmark.name))
        requests = {id(cell): frozenset(cell.prompt_hashes.tolist()) for cell in cells}
        self._rank = {_key(cell): rank for rank, cell in enumerate(larger_first)}
        self._into: dict[_Key, set[_Key]] = {}
        shared = []
        for large, small in combinations(larger_first, 2):
            if not _comparable(small, large) or requests[id(small)].isdisjoint(requests[id(large)]):
                continue
            found = SharedRequests(
                benchmark=small.benchmark.name,
                other=large.benchmark.name,
                protocol=small.protocol,
                context=small.context,
                other_context=large.context,
                documents=sum(each in requests[id(large)] for each in small.prompt_hashes.tolist()),
                of=len(small.documents),
                checkpoints=tuple(sorted(set(small.present) & set(large.present))),
            )
            shared.append(found)
            if found.counts_once:
                self._into.setdefault(_key(small), set()).add(_key(large))
        self.shared = tuple(shared)

    def representatives(self, cells: Sequence[Cell]) -> dict[int, int]:
        """Index of each cell that counts with another one of `cells` → index of that one."""
        kept: dict[_Key, int] = {}
        found = {}
        for i in sorted(range(len(cells)), key=lambda i: self._rank[_key(cells[i])]):
            into = self._into.get(_key(cells[i]), set()) & kept.keys()
            if into:
                found[i] = kept[min(into, key=self._rank.__getitem__)]
            else:
                kept[_key(cells[i])] = i
        return found

    def once(self, cells: Sequence[Cell]) -> tuple[int, ...]:
        """Indices of the cells that an average over `cells` counts, in their order."""
        merged = self.representatives(cells)
        return tuple(i for i in range(len(cells)) if i not in merged)

    def benchmarks(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Benchmark none of whose `cells` counts itself → the benchmark that it counts with."""
        found = self.representatives(cells)
        own = {cell.benchmark.name for i, cell in enumerate(cells) if i not in found}
        return {
            name: cells[into].benchmark.name
            for i, into in sorted(found.items())
            if (name := cells[i].benchmark.name) not in own
        }

    def sentences(self, titles: Mapping[str, str]) -> list[str]:
        """Say which benchmarks share requests, and whether they count once; contexts together."""
        found: dict[tuple[str, str, str, bool], list[SharedRequests]] = {}
        for each in self.shared:
            found.setdefault((each.benchmark, each.other, each.protocol, each.counts_once), []).append(each)
        return [
            f"{titles[benchmark]}: {sum(e.documents for e in group):,} of its {sum(e.of for e in group):,} "
            f"requests under {PROTOCOL_TITLES[protocol]} are requests of {titles[other]}. "
            + (
                "Where both would count, the two are one benchmark, by the scores of "
                f"{titles[other]}: averages, categories, pooled tests, document counts, Holm's corrections."
                if once
                else f"They are fewer than {100 * COINCIDES:.0f} %, and both count."
            )
            for (benchmark, other, protocol, once), group in found.items()
        ]


_Key = tuple[str, str, int | None, tuple[int, ...]]


def _key(cell: Cell) -> _Key:
    return (*cell.key, cell.present)


def _comparable(one: Cell, other: Cell) -> bool:
    """Whether an average could count both: two benchmarks of one protocol and some checkpoint."""
    return (
        one.benchmark.name != other.benchmark.name
        and one.protocol == other.protocol
        and one.is_perplexity == other.is_perplexity
        and not set(one.present).isdisjoint(other.present)
    )


def holm_once(p_values: Sequence[float], merged: Mapping[int, int]) -> list[float]:
    """Holm's correction over a family in which some hypotheses count with others.

    Args:
        p_values: of all hypotheses.
        merged: index of each hypothesis that counts with another one → index of that one, which does not.

    Returns:
        Corrected p-values; that of a merged hypothesis as if it took the place of the other one.
    """
    family = [i for i in range(len(p_values)) if i not in merged]
    place = {i: at for at, i in enumerate(family)}
    own = [p_values[i] for i in family]
    found = dict(zip(family, holm(own), strict=True))
    for i, into in merged.items():
        at = place[into]
        found[i] = holm([*own[:at], p_values[i], *own[at + 1 :]])[at]
    return [found[i] for i in range(len(p_values))]

"""Evidence for the gate: the cells that a rule selects, resampled when first needed, and what is missing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from evalsuite.foundation import EvalsuiteError, nearest
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.gaps import GapPool
from evalsuite.reports.analysis.measures.agreement import AgreementPool
from evalsuite.reports.analysis.measures.informative import informative_rows
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.gate.measurement import NotMeasured
from evalsuite.reports.gate.policy import Policy, Rule
from evalsuite.reports.records.distances import read_distances
from evalsuite.reports.records.efficiency import EfficiencyRow, read_efficiency
from evalsuite.reports.records.merging import CellKey

SHOWN = 10
"""Maximum number of documents named for a rule that fails."""
NO_TEACHER = NotMeasured("the run has no teacher to compare with")


class Evidence:
    """What rules are measured on; each protocol is resampled at most once, when first needed."""

    def __init__(self, tensor: ResultTensor, policy: Policy) -> None:
        """Measure on `tensor`."""
        self.tensor = tensor
        self.policy = policy
        self._pools: dict[str, Pool] = {}
        self._gaps: GapPool | None = None
        self._agreements: dict[tuple[str, int], AgreementPool] = {}
        self._baselines: dict[str, ResultTensor | str] = {}
        self._distances: tuple[pd.DataFrame | None] | None = None
        self._efficiency: list[EfficiencyRow] | None = None
        self._uninformative: dict[tuple[str, int], dict[str, str]] = {}

    @property
    def distances(self) -> pd.DataFrame | None:
        """The distances of the runs; None if they have none."""
        if self._distances is None:
            self._distances = (read_distances(self.tensor.merged.runs),)
        return self._distances[0]

    @property
    def efficiency(self) -> list[EfficiencyRow]:
        """The measurements of inference cost of the runs."""
        if self._efficiency is None:
            self._efficiency = read_efficiency(self.tensor.merged.runs)
        return self._efficiency

    def pool(self, protocol: str) -> Pool:
        """The cells of a protocol."""
        if protocol not in self._pools:
            self._pools[protocol] = Pool(self.tensor, protocol)
        return self._pools[protocol]

    @property
    def gaps(self) -> GapPool:
        """The cells with both protocols."""
        if self._gaps is None:
            self._gaps = GapPool(self.tensor)
        return self._gaps

    def agreement(self, protocol: str, teacher: int) -> AgreementPool:
        """The flips of the students of a teacher."""
        key = protocol, teacher
        if key not in self._agreements:
            self._agreements[key] = AgreementPool(self.tensor, protocol, teacher)
        return self._agreements[key]

    def left_out(self, rule: Rule, protocol: str, checkpoint: int) -> Mapping[str, str]:
        """Benchmarks that the scope of a rule leaves out, and why: those known not to be informative.

        A benchmark that the checkpoint's teacher lacks is not among them, and so is missing.
        """
        if not rule.is_informative:
            return {}
        teacher = self.tensor.checkpoints[checkpoint].teacher
        key = protocol, checkpoint if teacher is None else teacher
        if key not in self._uninformative:
            rows = informative_rows(self.pool(protocol), key[1])
            self._uninformative[key] = {row.benchmark: row.why for row in rows if row.why}
        return self._uninformative[key]

    def sample(
        self, rule: Rule, protocol: str, needed: Sequence[int]
    ) -> tuple[BootstrapSample, list[Cell]] | NotMeasured:
        """The sample of the cells that a rule selects and that all of `needed` have, complete.

        The first of `needed` is the checkpoint that the rule decides on.
        """
        pool, left_out = self.pool(protocol), self.left_out(rule, protocol, needed[0])
        chosen = [
            i
            for i, cell in enumerate(pool.cells)
            if matches(rule, cell, left_out) and set(needed) <= set(cell.present)
        ]
        there = {pool.cells[i].key for i in chosen}
        lacking = missing(rule, self.tensor, protocol, needed, there, left_out=left_out)
        data = pool.sample(tuple(chosen))
        if lacking or data is None:
            return NotMeasured(lacking or nothing(rule, self.tensor, protocol, left_out))
        return data, [pool.cells[i] for i in pool.once(chosen)]

    def baseline(self, path: str) -> ResultTensor | str:
        """Load a stored run once; the reason if it cannot be read."""
        if path not in self._baselines:
            try:
                selection = replace(self.tensor.selection, teacher=None, checkpoints=())
                self._baselines[path] = load_result_tensor([Path(path)], selection)
            except EvalsuiteError as error:
                self._baselines[path] = f"the baseline cannot be read: {error}"
        return self._baselines[path]


def matches(rule: Rule, cell: Cell, left_out: Collection[str] = ()) -> bool:
    """Whether a rule selects a cell; see `Evidence.left_out`."""
    if cell.benchmark.name in left_out:
        return False
    if rule.benchmark is not None and cell.benchmark.name != rule.benchmark:
        return False
    if rule.category is not None and cell.benchmark.category != rule.category:
        return False
    return rule.context is None or cell.context == rule.context


def missing(
    rule: Rule,
    tensor: ResultTensor,
    protocol: str,
    needed: Sequence[int],
    there: Collection[CellKey],
    protocols: Sequence[str] = (),
    left_out: Collection[str] = (),
) -> str:
    """Explain which planned cells are not measured for all of `needed`; empty if none is.

    Args:
        rule: selects benchmarks and contexts.
        tensor: gives the plan and its incomplete cells.
        protocol: of the cells.
        needed: checkpoints.
        there: the measured cells.
        protocols: only benchmarks with all of these count.
        left_out: see `Evidence.left_out`.
    """
    found = []
    for benchmark in tensor.merged.benchmarks:
        how = benchmark.protocols.get(protocol)  # type: ignore[call-overload]  # the keys are these texts
        if how is None or how.direction == "lower" or benchmark.name in left_out:
            continue
        others = [benchmark.protocols.get(name) for name in protocols]  # type: ignore[call-overload]
        if any(other is None or other.direction == "lower" for other in others):
            continue
        if rule.benchmark not in (None, benchmark.name) or rule.category not in (None, benchmark.category):
            continue
        for context in how.contexts:
            key = benchmark.name, protocol, context
            if rule.context not in (None, context) or key in there:
                continue
            lacking = [(who, cell) for who in needed if (cell := tensor.unmeasured(who, key)) is not None]
            found += [cell.sentence([tensor.checkpoints[who].label], benchmark.name) for who, cell in lacking]
            unread = [] if lacking else [who for who in needed if (who, key) in tensor.unread]
            if rule.context is not None:
                found += [
                    f"{name_of(key)}: '{tensor.checkpoints[who].label}' {tensor.unread[who, key]}"
                    for who in unread
                ]
            if not lacking and not unread:
                found.append(f"{name_of(key)}: in the plan, but without comparable responses")
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def nothing(
    rule: Rule, tensor: ResultTensor, protocol: str, left_out: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Explain why no cell is selected; see `Evidence.left_out`."""
    if left_out:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        return f"no benchmark is informative under {PROTOCOL_TITLES[protocol]}: {reasons}"
    if rule.benchmark is not None:
        names = [benchmark.name for benchmark in tensor.merged.benchmarks]
        if rule.benchmark not in names:
            return f"the run has no benchmark '{rule.benchmark}'{nearest(rule.benchmark, names)}"
        place = "" if rule.context is None else f" at {rule.context:,} tokens"
        return f"the run has no '{rule.benchmark}'{place} with a score under {PROTOCOL_TITLES[protocol]}"
    what = f"no benchmark of category '{rule.category}'" if rule.category else "no benchmark"
    return f"the run has {what} with a score under {PROTOCOL_TITLES[protocol]}"


def name_of(key: CellKey) -> str:
    """Such as ``niah at 512 tokens``."""
    name, _, context = key
    return name if context is None else f"{name} at {context:,} tokens"


def lost_documents(cells: Sequence[Cell], checkpoint: int, teacher: int) -> tuple[str, ...]:
    """Documents on which the teacher scores higher, a few per benchmark."""
    found = []
    for cell in cells:
        scores = cell.scores()
        worse = scores[cell.present.index(checkpoint)] < scores[cell.present.index(teacher)]
        found.append([f"{cell.benchmark.name}/{document}" for document in cell.documents[worse]])
    share = max(1, SHOWN // max(1, len(found)))
    return tuple([name for names in found for name in names[:share]][:SHOWN])

"""Evidence for rules: the cells that a rule selects, resampled when first needed, and what is missing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, TypeVarTuple

from evalsuite.foundation import EvalsuiteError, nearest
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.informative import informative_rows
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.analysis.scopes import BenchmarkPart, Pool
from evalsuite.reports.records.merging import CellKey
from evalsuite.reports.rules.measurement import NotMeasured
from evalsuite.reports.rules.rule import Over, Rule

SHOWN = 10
"""Maximum number of documents named for a rule that fails."""
NO_TEACHER = NotMeasured("the run has no teacher to compare with")
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Evidence:
    """What rules are measured on; whatever is made of the results is made once, when first needed."""

    def __init__(
        self, tensor: ResultTensor, *, over: Over | None = None, run_spread: float | None = None
    ) -> None:
        """Measure on `tensor`; `over` and `run_spread` are those of the policy."""
        self.tensor = tensor
        self.over = over
        self.run_spread = run_spread
        self._made: dict[tuple[object, ...], Any] = {}
        self._baselines: dict[str, ResultTensor | str] = {}
        self._uninformative: dict[tuple[str, int], dict[str, str]] = {}

    def of(self, make: Callable[[ResultTensor, *Arguments], T], *arguments: *Arguments) -> T:
        """What a function makes of the results, computed once for the same arguments."""
        key = make, *arguments
        if key not in self._made:
            self._made[key] = make(self.tensor, *arguments)
        found: T = self._made[key]
        return found

    def pool(self, protocol: str) -> Pool:
        """The cells of a protocol."""
        return self.of(Pool, protocol)

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


def matches(rule: Rule, cell: BenchmarkPart, left_out: Collection[str] = ()) -> bool:
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

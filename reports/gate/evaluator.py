"""Measure one rule of a policy on one checkpoint: an estimate with its draws, or why there is none."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evalsuite.foundation import EvalsuiteError, content_hash, nearest
from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum
from evalsuite.reports.analysis.gaps import GapPool
from evalsuite.reports.analysis.recovery import mean_drop, ratio_of
from evalsuite.reports.analysis.result_tensor import Cell, ResultTensor, load_result_tensor
from evalsuite.reports.analysis.scopes import Pool, weights_of
from evalsuite.reports.gate.policy import Rule
from evalsuite.reports.records.merging import CellKey
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.contrasts import Contrast, ratio_interval
from evalsuite.reports.statistics.intervals import Interval

SHOWN = 10
"""Maximum number of documents named for a rule that fails."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A quantity with its draws: fractions for a `min`, points for a `max`."""

    contrast: Contrast
    """The quantity, or the numerator of a ratio."""
    documents: int
    look_at: tuple[str, ...]
    """`benchmark/document`: documents on which the checkpoint is worse."""
    denominator: Contrast | None = None

    @property
    def point(self) -> float:
        """The point estimate."""
        return self.contrast.point / (1.0 if self.denominator is None else self.denominator.point)

    @property
    def unit(self) -> float:
        """How much the margin changes if the threshold changes by one."""
        return 1.0 if self.denominator is None else self.denominator.point

    def margin(self, threshold: float) -> Contrast:
        """The quantity − threshold; for a ratio, numerator − threshold · denominator, with the same sign."""
        if self.denominator is None:
            return self.contrast.shifted(-threshold)
        return self.contrast.minus(self.denominator, threshold)

    def interval(self, level: float) -> Interval:
        """The interval of the quantity."""
        if self.denominator is None:
            return self.contrast.interval(level)
        return ratio_interval(self.contrast, self.denominator, level)


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a rule could not be measured."""

    why: str


class Evaluator:
    """Measures rules on a result tensor; resamples each protocol at most once, when first needed."""

    def __init__(self, tensor: ResultTensor) -> None:
        """Measure on `tensor`."""
        self.tensor = tensor
        self._pools: dict[str, Pool] = {}
        self._gaps: GapPool | None = None
        self._baselines: dict[str, ResultTensor | str] = {}

    def measure(self, rule: Rule, protocol: str | None, checkpoint: int) -> Measurement | NotMeasured:
        """Measure one rule on one checkpoint."""
        if rule.metric == "gap":
            return self._gap(rule, checkpoint)
        assert protocol is not None
        if rule.metric == "regression":
            return self._regression(rule, protocol, checkpoint)
        return self._against_teacher(rule, protocol, checkpoint)

    def _pool(self, protocol: str) -> Pool:
        if protocol not in self._pools:
            self._pools[protocol] = Pool(self.tensor, protocol)
        return self._pools[protocol]

    def _against_teacher(self, rule: Rule, protocol: str, checkpoint: int) -> Measurement | NotMeasured:
        pool = self._pool(protocol)
        teacher = self.tensor.checkpoints[checkpoint].teacher
        needed = [checkpoint] if rule.metric == "score" or teacher is None else [checkpoint, teacher]
        chosen = [
            i
            for i, cell in enumerate(pool.cells)
            if _matches(rule, cell) and set(needed) <= set(cell.present)
        ]
        missing = _missing(rule, self.tensor, protocol, needed, {pool.cells[i].key for i in chosen})
        data = pool.sample(tuple(chosen))
        if missing or data is None:
            return NotMeasured(missing or _nothing(rule, self.tensor, protocol))
        if rule.metric != "score" and teacher is None:
            return NotMeasured("the run has no teacher to compare with")
        cells = [pool.cells[i] for i in chosen]
        if rule.metric == "score":
            return Measurement(data.level_contrast(checkpoint), data.documents, ())
        assert teacher is not None
        look_at = _lost(cells, checkpoint, teacher)
        students, spread = [checkpoint], None
        if rule.over == "runs":
            students = [i for i in pool.recipes.runs(checkpoint) if all(i in cell.present for cell in cells)]
            spread = pool.recipes.spread(data, teacher)
            if len(students) < 2 or spread is None:
                label = self.tensor.checkpoints[checkpoint].label
                return NotMeasured(
                    f"'over: runs' needs two or more training runs that differ only by seed, and '{label}' "
                    "is the only one of its recipe with these scores: train another seed, or decide over "
                    "documents"
                )
        if rule.metric == "drop":
            drop = mean_drop(data, students, teacher, spread)
            return Measurement(drop.scaled(100), data.documents, look_at)
        chance = None
        if rule.metric == "chance_normalized_recovery":
            if any(cell.chance is None for cell in cells):
                return NotMeasured("the chance level of a benchmark is not known")
            chance = pool.chance
        ratio = ratio_of(data, students, teacher, chance, spread)
        if isinstance(ratio, str):
            return NotMeasured(f"recovery is undefined: {ratio}")
        return Measurement(ratio.numerator, data.documents, look_at, ratio.denominator)

    def _gap(self, rule: Rule, checkpoint: int) -> Measurement | NotMeasured:
        if self._gaps is None:
            self._gaps = GapPool(self.tensor)
        pool = self._gaps
        teacher = self.tensor.checkpoints[checkpoint].teacher
        if teacher is None:
            return NotMeasured("the run has no teacher to compare with")
        needed = [checkpoint, teacher]
        chosen = [i for i in pool.answered(needed) if _matches(rule, pool.protocol_pairs[i].loglikelihood)]
        there = {pool.protocol_pairs[i].loglikelihood.key for i in chosen}
        there |= {pool.protocol_pairs[i].generation.key for i in chosen}
        missing = [_missing(rule, self.tensor, name, needed, there, PROTOCOLS) for name in PROTOCOLS]
        if any(missing):
            return NotMeasured("; ".join(filter(None, missing)))
        if not chosen:
            what = rule.benchmark or rule.category or "nothing"
            return NotMeasured(f"{what}: not evaluated under both protocols on the same documents")
        data = pool.of(chosen)
        look_at = []
        for i in chosen:
            pair = pool.protocol_pairs[i]
            loglikelihood, generation = pair.scores(checkpoint)
            for position in np.flatnonzero((loglikelihood >= 0.5) & (generation < 0.5)):
                document = pair.loglikelihood.documents[pair.in_loglikelihood[position]]
                look_at.append(f"{pair.loglikelihood.benchmark.name}/{document}")
        gap = data.contrast(pool.gap(checkpoint, teacher)).scaled(100)
        return Measurement(gap, data.documents, tuple(look_at[:SHOWN]))

    def _regression(self, rule: Rule, protocol: str, checkpoint: int) -> Measurement | NotMeasured:
        baseline = self._baseline(str(rule.baseline))
        if isinstance(baseline, str):
            return NotMeasured(baseline)
        label = self.tensor.checkpoints[checkpoint].label
        before = _counterpart(baseline, rule.baseline_checkpoint or label, rule.baseline_checkpoint is None)
        if before is None:
            labels = [each.label for each in baseline.checkpoints]
            wanted = rule.baseline_checkpoint or label
            return NotMeasured(f"{rule.baseline}: has no checkpoint '{wanted}'{nearest(wanted, labels)}")
        cells = [
            c
            for c in self.tensor.cells
            if c.protocol == protocol
            and _matches(rule, c)
            and not c.is_perplexity
            and checkpoint in c.present
        ]
        missing = _missing(rule, self.tensor, protocol, [checkpoint], {cell.key for cell in cells})
        if missing or not cells:
            return NotMeasured(missing or _nothing(rule, self.tensor, protocol))
        strata, look_at = [], []
        for cell in cells:
            old = next((c for c in baseline.cells if c.key == cell.key and before in c.present), None)
            if old is None:
                lacking = baseline.unmeasured(before, cell.key)
                found = lacking and lacking.sentence(
                    [baseline.checkpoints[before].label], cell.benchmark.name
                )
                return NotMeasured(
                    f"{rule.baseline}: {found or f'{_name_of(cell.key)}: not in the baseline'}"
                )
            rows, documents = _paired(old, before, cell, checkpoint)
            if len(rows) < 2 or not self.tensor.selection.admits(len(rows), len(cell.documents)):
                return NotMeasured(
                    f"{_name_of(cell.key)}: only {len(rows):,} of {len(cell.documents):,} documents have the "
                    "same prompt in the baseline"
                )
            strata.append(ResampledStratum(_stratum(rows, documents, old, before, cell, checkpoint)))
            lost = documents[rows[:, 1] < rows[:, 0]]
            look_at += [f"{cell.benchmark.name}/{document}" for document in lost]
        data = BootstrapSample(strata, weights_of(cells))
        return Measurement(data.difference(0, 1).scaled(100), data.documents, tuple(look_at[:SHOWN]))

    def _baseline(self, path: str) -> ResultTensor | str:
        """Load a stored run; returns the reason if it cannot be read."""
        if path not in self._baselines:
            try:
                selection = replace(self.tensor.selection, teacher=None, checkpoints=())
                self._baselines[path] = load_result_tensor([Path(path)], selection)
            except EvalsuiteError as error:
                self._baselines[path] = f"the baseline cannot be read: {error}"
        return self._baselines[path]


def _matches(rule: Rule, cell: Cell) -> bool:
    if rule.benchmark is not None and cell.benchmark.name != rule.benchmark:
        return False
    if rule.category is not None and cell.benchmark.category != rule.category:
        return False
    return rule.context is None or cell.context == rule.context


def _missing(
    rule: Rule,
    tensor: ResultTensor,
    protocol: str,
    needed: Sequence[int],
    there: Collection[CellKey],
    protocols: Sequence[str] = (),
) -> str:
    """Explain which planned cells are not measured for all of `needed`; empty if none is.

    Args:
        rule: selects benchmarks and contexts.
        tensor: gives the plan and its incomplete cells.
        protocol: of the cells.
        needed: checkpoints.
        there: the measured cells.
        protocols: only benchmarks with all of these count.
    """
    found = []
    for benchmark in tensor.merged.benchmarks:
        how = benchmark.protocols.get(protocol)  # type: ignore[call-overload]  # the keys are these texts
        if how is None or how.direction == "lower":
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
            if not lacking:
                found.append(f"{_name_of(key)}: in the plan, but without comparable responses")
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def _nothing(rule: Rule, tensor: ResultTensor, protocol: str) -> str:
    if rule.benchmark is not None:
        names = [benchmark.name for benchmark in tensor.merged.benchmarks]
        if rule.benchmark not in names:
            return f"the run has no benchmark '{rule.benchmark}'{nearest(rule.benchmark, names)}"
        place = "" if rule.context is None else f" at {rule.context:,} tokens"
        return f"the run has no '{rule.benchmark}'{place} with a score under {protocol}"
    what = f"no benchmark of category '{rule.category}'" if rule.category else "no benchmark"
    return f"the run has {what} with a score under {protocol}"


def _name_of(key: CellKey) -> str:
    name, _, context = key
    return name if context is None else f"{name} at {context:,} tokens"


def _lost(cells: Sequence[Cell], checkpoint: int, teacher: int) -> tuple[str, ...]:
    """Documents on which the teacher scores higher, a few per benchmark."""
    found = []
    for cell in cells:
        scores = cell.scores()
        worse = scores[cell.present.index(checkpoint)] < scores[cell.present.index(teacher)]
        found.append([f"{cell.benchmark.name}/{document}" for document in cell.documents[worse]])
    share = max(1, SHOWN // max(1, len(found)))
    return tuple([name for names in found for name in names[:share]][:SHOWN])


def _counterpart(baseline: ResultTensor, label: str, or_only_student: bool) -> int | None:
    for i, checkpoint in enumerate(baseline.checkpoints):
        if label in (checkpoint.label, checkpoint.plan.label, checkpoint.plan.weights_id):
            return i
    students = [i for i, checkpoint in enumerate(baseline.checkpoints) if not checkpoint.is_teacher]
    return students[0] if or_only_student and len(students) == 1 else None


def _paired(old: Cell, before: int, new: Cell, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores [documents, 2] before and after on documents with the same prompt, and the documents."""
    documents, a, b = np.intersect1d(old.documents, new.documents, assume_unique=True, return_indices=True)
    same_prompt = old.prompt_hashes[a] == new.prompt_hashes[b]
    scores = [
        cell.scores()[cell.present.index(checkpoint)][at[same_prompt]]
        for cell, checkpoint, at in ((old, before, a), (new, after, b))
    ]
    return np.column_stack(scores), documents[same_prompt]


def _stratum(
    rows: np.ndarray, documents: np.ndarray, old: Cell, before: int, new: Cell, after: int
) -> Stratum:
    """Stratum of the scores [documents, 2] before and after, with the clusters and seeds of their cells."""
    cells = ((old, before, "before"), (new, after, "after"))
    at = np.searchsorted(new.documents, documents)
    return Stratum(
        rows,
        tuple(name for _, _, name in cells),
        content_hash([new.key, documents.tolist()]),
        None if new.clusters is None else np.unique(new.clusters[at], return_inverse=True)[1],
        np.array([cell.seed_variance()[cell.present.index(who)] for cell, who, _ in cells]),
        np.array([max(1, len(cell.seeds) - 1) for cell, _, _ in cells]),
    )

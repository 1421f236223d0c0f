"""Measuring one line of a policy on one checkpoint: the point, its draws, or why there are none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalsuite.foundation import EvalsuiteError, content_hash, nearest
from evalsuite.reports.analysis.gaps import GapPool
from evalsuite.reports.analysis.scopes import Pool, weights_of
from evalsuite.reports.gating.policy import Line
from evalsuite.reports.panel import Cell, Panel, load_panel
from evalsuite.reports.resampled import Resampled
from evalsuite.reports.statistics.bootstrap import collapse

DRAWS = 20_000
"""Enough for the tail of a line among fifty."""
SHOWN = 10
"""Documents named for a line that fails."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A quantity with its bootstrap draws: fractions for a `min`, points for a `max`."""

    point: float
    draws: np.ndarray
    documents: int
    look_at: tuple[str, ...]
    """`benchmark/document`, those that speak against the checkpoint first."""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Why a line could not be measured."""

    why: str


class Bench:
    """Everything that lines are measured on; resampled when first needed."""

    def __init__(self, panel: Panel) -> None:
        """Measure on `panel`."""
        self.panel = panel
        self._pools: dict[str, Pool] = {}
        self._gaps: GapPool | None = None
        self._baselines: dict[str, Panel | str] = {}

    def measure(self, line: Line, protocol: str | None, subject: int) -> Measured | Unmeasured:
        """Measure one line on one checkpoint."""
        if line.metric == "gap":
            return self._gap(line, subject)
        assert protocol is not None
        if line.metric == "regression":
            return self._regression(line, protocol, subject)
        return self._beside_teacher(line, protocol, subject)

    def _pool(self, protocol: str) -> Pool:
        if protocol not in self._pools:
            self._pools[protocol] = Pool(self.panel, protocol, DRAWS)
        return self._pools[protocol]

    def _beside_teacher(self, line: Line, protocol: str, subject: int) -> Measured | Unmeasured:
        pool = self._pool(protocol)
        chosen = [i for i, cell in enumerate(pool.cells) if _is_meant(line, cell)]
        missing = _missing(line, self.panel, protocol, [pool.cells[i] for i in chosen])
        if missing or not chosen or pool.data is None:
            return Unmeasured(missing or _nothing(line, self.panel, protocol))
        teacher = self.panel.subjects[subject].teacher
        needed = [subject] if line.metric == "score" else [subject, teacher]
        for each in needed:
            if each is None:
                return Unmeasured("the run has no teacher to compare with")
            lacking = [pool.cells[i] for i in chosen if each not in pool.cells[i].present]
            if lacking:
                who = self.panel.subjects[each].label
                return Unmeasured(f"'{who}' has no comparable answers to {_names(lacking)} under {protocol}")
        data = pool.data.only(chosen, weights_of([pool.cells[i] for i in chosen]))
        cells = [pool.cells[i] for i in chosen]
        if line.metric == "score":
            return Measured(data.level(subject), data.level_draws_bounded(subject), data.documents, ())
        assert teacher is not None
        look_at = _lost(cells, subject, teacher)
        if line.metric == "deficit":
            points = 100 * data.difference(teacher, subject)
            return Measured(points, 100 * data.difference_draws(teacher, subject), data.documents, look_at)
        centre = None
        if line.metric == "centred_recovery":
            if any(cell.chance is None for cell in cells):
                return Unmeasured("the chance level of a benchmark is not known")
            centre = pool.chance
        draws = data.ratio_draws(subject, teacher, centre)
        if draws is None:
            above = "zero" if centre is None else "chance"
            return Unmeasured(f"recovery is undefined: the teacher's score is not above {above}")
        return Measured(data.ratio(subject, teacher, centre), draws, data.documents, look_at)

    def _gap(self, line: Line, subject: int) -> Measured | Unmeasured:
        if self._gaps is None:
            self._gaps = GapPool(self.panel, DRAWS)
        pool = self._gaps
        teacher = self.panel.subjects[subject].teacher
        if teacher is None:
            return Unmeasured("the run has no teacher to compare with")
        chosen = [i for i, twin in enumerate(pool.twins) if _is_meant(line, twin.ranked)]
        if not chosen:
            what = line.benchmark or line.category or "nothing"
            return Unmeasured(f"{what}: not asked under both protocols on the same documents")
        answered = set(pool.answered([subject, teacher]))
        lacking = [pool.twins[i].ranked for i in chosen if i not in answered]
        if lacking:
            return Unmeasured(f"{_names(lacking)}: not answered under both protocols")
        data = pool.of(chosen)
        columns = pool.columns(subject), pool.columns(teacher)
        look_at = []
        for i in chosen:
            twin = pool.twins[i]
            ranked, written = twin.scores(subject)
            for position in np.flatnonzero((ranked >= 0.5) & (written < 0.5)):
                document = twin.ranked.documents[twin.in_ranked[position]]
                look_at.append(f"{twin.ranked.benchmark.name}/{document}")
        return Measured(
            100 * data.gap(*columns), 100 * data.gap_draws(*columns), data.documents, tuple(look_at[:SHOWN])
        )

    def _regression(self, line: Line, protocol: str, subject: int) -> Measured | Unmeasured:
        baseline = self._baseline(str(line.baseline))
        if isinstance(baseline, str):
            return Unmeasured(baseline)
        label = self.panel.subjects[subject].label
        before = _counterpart(baseline, line.baseline_checkpoint or label, line.baseline_checkpoint is None)
        if before is None:
            labels = [each.label for each in baseline.subjects]
            wanted = line.baseline_checkpoint or label
            return Unmeasured(f"{line.baseline}: has no checkpoint '{wanted}'{nearest(wanted, labels)}")
        cells = [
            c
            for c in self.panel.cells
            if c.protocol == protocol and _is_meant(line, c) and not c.is_perplexity
        ]
        missing = _missing(line, self.panel, protocol, cells)
        if missing or not cells:
            return Unmeasured(missing or _nothing(line, self.panel, protocol))
        strata, look_at = [], []
        for cell in cells:
            old = next((c for c in baseline.cells if c.key == cell.key), None)
            if old is None or before not in old.present or subject not in cell.present:
                return Unmeasured(f"{_names([cell])}: not answered by both '{label}' and its baseline")
            rows, documents = _paired(old, before, cell, subject)
            if len(rows) < max(2, 0.9 * len(cell.documents)):
                return Unmeasured(
                    f"{_names([cell])}: only {len(rows):,} of {len(cell.documents):,} documents were asked "
                    "alike in the baseline"
                )
            strata.append(collapse(rows))
            lost = documents[rows[:, 1] < rows[:, 0]]
            look_at += [f"{cell.benchmark.name}/{document}" for document in lost]
        rng = np.random.default_rng(int(content_hash(["regression", *(cell.key for cell in cells)]), 16))
        data = Resampled(strata, weights_of(cells), rng, draws=DRAWS)
        return Measured(
            100 * data.difference(0, 1),
            100 * data.difference_draws(0, 1),
            data.documents,
            tuple(look_at[:SHOWN]),
        )

    def _baseline(self, path: str) -> Panel | str:
        """The stored run, or why it cannot be read."""
        if path not in self._baselines:
            try:
                self._baselines[path] = load_panel([Path(path)])
            except EvalsuiteError as error:
                self._baselines[path] = f"the baseline cannot be read: {error}"
        return self._baselines[path]


def _is_meant(line: Line, cell: Cell) -> bool:
    if line.benchmark is not None and cell.benchmark.name != line.benchmark:
        return False
    if line.category is not None and cell.benchmark.category != line.category:
        return False
    return line.context is None or cell.context == line.context


def _missing(line: Line, panel: Panel, protocol: str, found: Sequence[Cell]) -> str:
    """Why an average is not of everything that the plan asked for; empty if it is."""
    there = {cell.key for cell in found}
    for benchmark in panel.merged.benchmarks:
        how = benchmark.protocols.get(protocol)  # type: ignore[call-overload]  # the keys are these texts
        if how is None or how.direction == "lower":
            continue
        for context in benchmark.contexts or (None,):
            key = (benchmark.name, protocol, context)
            is_meant = (
                line.benchmark in (None, benchmark.name)
                and line.category in (None, benchmark.category)
                and line.context in (None, context)
            )
            if is_meant and key not in there:
                place = "" if context is None else f" at {context:,} tokens"
                return f"{benchmark.name}{place}: asked by the plan, but without comparable answers"
    return ""


def _nothing(line: Line, panel: Panel, protocol: str) -> str:
    if line.benchmark is not None:
        names = [benchmark.name for benchmark in panel.merged.benchmarks]
        if line.benchmark not in names:
            return f"the run has no benchmark '{line.benchmark}'{nearest(line.benchmark, names)}"
        place = "" if line.context is None else f" at {line.context:,} tokens"
        return f"the run has no '{line.benchmark}'{place} with a score under {protocol}"
    what = f"no benchmark of category '{line.category}'" if line.category else "no benchmark"
    return f"the run has {what} with a score under {protocol}"


def _names(cells: Sequence[Cell]) -> str:
    names = [c.benchmark.name + (f" at {c.context:,} tokens" if c.context else "") for c in cells]
    return ", ".join(dict.fromkeys(names))


def _lost(cells: Sequence[Cell], subject: int, teacher: int) -> tuple[str, ...]:
    """Documents that the teacher answers better, a few of each benchmark."""
    found = []
    for cell in cells:
        scores = cell.scores()
        worse = scores[cell.present.index(subject)] < scores[cell.present.index(teacher)]
        found.append([f"{cell.benchmark.name}/{document}" for document in cell.documents[worse]])
    share = max(1, SHOWN // max(1, len(found)))
    return tuple([name for names in found for name in names[:share]][:SHOWN])


def _counterpart(baseline: Panel, label: str, or_only_student: bool) -> int | None:
    for i, subject in enumerate(baseline.subjects):
        if label in (subject.label, subject.plan.label, subject.plan.weights_id):
            return i
    students = [i for i, subject in enumerate(baseline.subjects) if not subject.is_teacher]
    return students[0] if or_only_student and len(students) == 1 else None


def _paired(old: Cell, before: int, new: Cell, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores [documents, 2] before and after on documents asked in the same words, and the documents."""
    documents, a, b = np.intersect1d(old.documents, new.documents, assume_unique=True, return_indices=True)
    alike = old.prompts[a] == new.prompts[b]
    scores = [
        cell.scores()[cell.present.index(subject)][at[alike]]
        for cell, subject, at in ((old, before, a), (new, after, b))
    ]
    return np.column_stack(scores), documents[alike]

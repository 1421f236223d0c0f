"""Merge the plans of several runs; plans that contradict each other are refused."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.foundation.taxonomy import Protocol
from evalsuite.reports.records.run_folder import (
    BenchmarkPlan,
    CheckpointPlan,
    DivergedStudent,
    Plan,
    ProtocolPlan,
    UnplannedCells,
    read_plan,
    still_diverged,
)
from evalsuite.reports.records.run_selection import RunSelection

CellKey = tuple[str, str, int | None]
"""Benchmark, protocol, context."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One checkpoint of a report."""

    plan: CheckpointPlan
    label: str
    """Unique in the report."""
    teacher: int | None
    """Index of the teacher that it is compared with; None for a teacher, or if there is none."""

    @property
    def is_teacher(self) -> bool:
        """Whether the checkpoint is a teacher."""
        return self.plan.role == "teacher"


@dataclass(frozen=True, slots=True)
class MergedPlan:
    """The merged plans of all runs of a report."""

    runs: tuple[Path, ...]
    plans: tuple[Plan, ...]
    benchmarks: tuple[BenchmarkPlan, ...]
    checkpoints: tuple[CheckpointEntry, ...]
    """Teachers first, each followed by its students; those without a teacher last."""
    warnings: tuple[str, ...]
    diverged: tuple[DivergedStudent, ...] = ()
    """Students that have no checkpoint in any of the runs."""

    @property
    def weights(self) -> frozenset[str]:
        """The weights_id of every planned checkpoint, whether it is selected or not."""
        return frozenset(checkpoint.weights_id for plan in self.plans for checkpoint in plan.checkpoints)

    def planned_cells(self) -> frozenset[tuple[int, CellKey]]:
        """(checkpoint, cell) for every cell that a checkpoint reads in one of its runs."""
        return frozenset((who, key) for who, key, limit in self._cells() if limit.reads(key[2]))

    def unread_cells(self) -> dict[tuple[int, CellKey], str]:
        """(checkpoint, cell) → why, for every cell that the checkpoint does not read in any of its runs."""
        planned = self.planned_cells()
        return {
            (checkpoint, key): limit.reason
            for checkpoint, key, limit in self._cells()
            if (checkpoint, key) not in planned
        }

    def as_plan(self) -> Plan:
        """Return the one plan of a run folder that holds what all runs have of these checkpoints.

        Raises:
            DataError: one plan cannot say it.
        """
        suites = dict.fromkeys(name for plan in self.plans for name in plan.suite.split(" + "))
        checkpoints = [each.plan.model_copy(update={"label": each.label}) for each in self.checkpoints]
        plan = Plan(
            suite=" + ".join(suites),
            created=max(plan.created for plan in self.plans),
            benchmarks=self.benchmarks,
            checkpoints=tuple(checkpoints),
            max_length=max((plan.max_length for plan in self.plans if plan.max_length), default=None),
            diverged=self.diverged,
            unplanned=self._unplanned(),
        )
        again = MergedPlan((), (plan,), plan.benchmarks, _pair_with_teachers(checkpoints, []), ())
        if (again.planned_cells(), again.unread_cells()) != (self.planned_cells(), self.unread_cells()):
            raise DataError(
                "the runs extend checkpoints to different positions (max_length), so that no single plan "
                "says which contexts each checkpoint reads: export their samples one by one"
            )
        if [each.teacher for each in again.checkpoints] != [each.teacher for each in self.checkpoints]:
            raise DataError(
                "a student whose lineage names no teacher of the runs would be compared with the only "
                "teacher that is left: select its teacher too (--checkpoint), or leave the student out"
            )
        return plan

    def _unplanned(self) -> tuple[UnplannedCells, ...]:
        planned = {(who, key) for who, key, _ in self._cells()}
        contexts: dict[tuple[str, Protocol, tuple[str, ...]], list[int | None]] = {}
        for benchmark in self.benchmarks:
            for protocol, how in benchmark.protocols.items():
                for context in how.contexts:
                    key = benchmark.name, protocol, context
                    who = [i for i in range(len(self.checkpoints)) if (i, key) not in planned]
                    if labels := tuple(self.checkpoints[i].label for i in who):
                        contexts.setdefault((benchmark.name, protocol, labels), []).append(context)
        return tuple(
            UnplannedCells(benchmark=name, protocol=protocol, contexts=tuple(found), checkpoints=labels)
            for (name, protocol, labels), found in contexts.items()
        )

    def _cells(self) -> Iterator[tuple[int, CellKey, ContextLimit]]:
        """Every checkpoint and cell of every plan, and which contexts the checkpoint reads there."""
        index = {checkpoint.plan.weights_id: i for i, checkpoint in enumerate(self.checkpoints)}
        for plan in self.plans:
            for checkpoint in (each for each in plan.checkpoints if each.weights_id in index):
                limit = plan.limit(checkpoint)
                for benchmark in plan.benchmarks:
                    for protocol, how in benchmark.protocols.items():
                        for context in how.contexts:
                            if plan.has(checkpoint, benchmark.name, protocol, context):
                                key = benchmark.name, protocol, context
                                yield index[checkpoint.weights_id], key, limit


def merge_plans(runs: Sequence[Path], selection: RunSelection | None = None) -> MergedPlan:
    """Read the plans of `runs` and merge them.

    Args:
        runs: run folders.
        selection: the teacher and the checkpoints; default: those of the plans.

    Raises:
        RunFolderError: a folder is not a run folder.
        DataError: two runs define a benchmark differently.
        ConfigError: no run has a selected checkpoint.
    """
    selection = selection or RunSelection()
    if not runs:
        raise ConfigError("no run folders given")
    plans = tuple(read_plan(run) for run in runs)
    warnings: list[str] = []
    benchmarks = _merge_benchmarks(runs, plans, warnings)
    checkpoints = _merge_checkpoints(runs, plans, warnings)
    if selection.teacher is not None:
        checkpoints = _with_teacher(checkpoints, selection.teacher)
    entries = _pair_with_teachers(checkpoints, warnings)
    notes = (each for plan in plans for each in plan.diverged)
    diverged = still_diverged(notes, {entry.label for entry in entries})
    if names := selection.checkpoints:
        diverged = tuple(each for each in diverged if each.label in names)
        trained = [name for name in names if name not in {each.label for each in diverged}]
        # Without names all are selected; where only diverged students are named, their teachers remain.
        entries = _selected(entries, trained) if trained else tuple(e for e in entries if e.is_teacher)
    warnings += [f"'{each.label}' {each.why}; it has no checkpoint and no scores." for each in diverged]
    return MergedPlan(tuple(runs), plans, benchmarks, entries, tuple(warnings), diverged)


def _merge_benchmarks(
    runs: Sequence[Path], plans: Sequence[Plan], warnings: list[str]
) -> tuple[BenchmarkPlan, ...]:
    merged: dict[str, BenchmarkPlan] = {}
    source: dict[str, Path] = {}
    for run, plan in zip(runs, plans, strict=True):
        for benchmark in plan.benchmarks:
            known = merged.get(benchmark.name)
            if known is None:
                merged[benchmark.name], source[benchmark.name] = benchmark, run
                continue
            for field in ("category", "chance", "group"):
                _must_agree(benchmark.name, field, known, benchmark, source[benchmark.name], run)
            # An older plan does not name its column; the clusters of its score rows tell.
            columns = {each.cluster_column for each in (known, benchmark)} - {None}
            if len(columns) > 1:
                _must_agree(benchmark.name, "cluster_column", known, benchmark, source[benchmark.name], run)
            protocols = dict(known.protocols)
            for name, protocol in benchmark.protocols.items():
                seen = protocols.get(name)
                protocols[name] = _merge_protocols(benchmark.name, seen, protocol, run, warnings)
            contexts = tuple(sorted({*known.contexts, *benchmark.contexts}))
            merged[benchmark.name] = known.model_copy(
                update={
                    "protocols": protocols,
                    "contexts": contexts,
                    "cluster_column": known.cluster_column or benchmark.cluster_column,
                }
            )
    return tuple(merged.values())


def _merge_protocols(
    benchmark: str, known: ProtocolPlan | None, new: ProtocolPlan, run: Path, warnings: list[str]
) -> ProtocolPlan:
    if known is None:
        return new
    for field in ("metric", "direction", "units", "num_fewshot", "sampling"):
        _must_agree(benchmark, field, known, new, "an earlier run", run)
    counts: dict[int | None, int] = {}
    for context in dict.fromkeys((*known.contexts, *new.contexts)):
        one, other = known.planned(context), new.planned(context)
        counts[context] = max(one, other)
        if one and other and one != other:
            place = "" if context is None else f" at {context:,} tokens"
            warnings.append(
                f"{run}/plan.yaml: benchmark '{benchmark}'{place} has {other:,} documents, {one:,} in an "
                f"earlier run; a cell is complete with {counts[context]:,}."
            )
    documents = counts[None] if None in counts else {c: n for c, n in counts.items() if c is not None}
    seeds = tuple(sorted({*known.seeds, *new.seeds}))
    return known.model_copy(update={"seeds": seeds, "documents": documents})


def _must_agree(
    benchmark: str,
    field: str,
    one: BenchmarkPlan | ProtocolPlan,
    other: BenchmarkPlan | ProtocolPlan,
    first: Path | str,
    second: Path,
) -> None:
    a, b = getattr(one, field), getattr(other, field)
    if a != b:
        raise DataError(
            f"{second}/plan.yaml: benchmark '{benchmark}' has {field} {b!r}, but {a!r} in {first}: "
            "the runs cannot be merged; compare them separately"
        )


def _merge_checkpoints(
    runs: Sequence[Path], plans: Sequence[Plan], warnings: list[str]
) -> list[CheckpointPlan]:
    merged: dict[str, CheckpointPlan] = {}
    for run, plan in zip(runs, plans, strict=True):
        for checkpoint in plan.checkpoints:
            known = merged.get(checkpoint.weights_id)
            if known is None:
                merged[checkpoint.weights_id] = checkpoint
                continue
            if known.label != checkpoint.label:
                warnings.append(
                    f"{run}: '{checkpoint.label}' has the same weights as '{known.label}' and is shown under "
                    "that label"
                )
            if checkpoint.role == "teacher" and known.role != "teacher":
                merged[checkpoint.weights_id] = known.model_copy(update={"role": "teacher"})
    return list(merged.values())


def _with_teacher(checkpoints: list[CheckpointPlan], teacher: str) -> list[CheckpointPlan]:
    chosen = [c for c in checkpoints if teacher in (c.label, c.weights_id)]
    if not chosen:
        labels = [checkpoint.label for checkpoint in checkpoints]
        raise ConfigError(f"no run has a checkpoint '{teacher}' (teacher){nearest(teacher, labels)}")
    return [c.model_copy(update={"role": "teacher" if c is chosen[0] else "student"}) for c in checkpoints]


def _selected(entries: tuple[CheckpointEntry, ...], names: Sequence[str]) -> tuple[CheckpointEntry, ...]:
    """The checkpoints with these labels or weights_ids, and their teachers; all without names."""
    if not names:
        return entries
    chosen: set[int] = set()
    for name in names:
        found = [
            i for i, each in enumerate(entries) if name in (each.label, each.plan.label, each.plan.weights_id)
        ]
        if not found:
            labels = [each.label for each in entries]
            raise ConfigError(f"no run has a checkpoint '{name}' (--checkpoint){nearest(name, labels)}")
        chosen.update(found)
    chosen |= {teacher for i in chosen if (teacher := entries[i].teacher) is not None}
    place = {old: new for new, old in enumerate(sorted(chosen))}
    return tuple(
        replace(entries[i], teacher=None if (teacher := entries[i].teacher) is None else place[teacher])
        for i in sorted(chosen)
    )


def stated_teacher(checkpoint: CheckpointPlan) -> str | None:
    """The weights_id of the teacher in a checkpoint's lineage, if stated."""
    stated = checkpoint.lineage.get("teacher")
    if isinstance(stated, dict):
        stated = stated.get("weights_id")
    return stated if isinstance(stated, str) else None


def _pair_with_teachers(
    checkpoints: list[CheckpointPlan], warnings: list[str]
) -> tuple[CheckpointEntry, ...]:
    teachers = [c for c in checkpoints if c.role == "teacher"]
    if not teachers:
        warnings.append(
            "No teacher among the checkpoints: the report has scores, but no recovery and no gap."
        )
    families: dict[str | None, list[CheckpointPlan]] = {c.weights_id: [] for c in teachers} | {None: []}
    for checkpoint in checkpoints:
        if checkpoint.role == "teacher":
            continue
        stated = stated_teacher(checkpoint)
        if stated is not None and stated in families:
            families[stated].append(checkpoint)
        elif len(teachers) == 1:
            families[teachers[0].weights_id].append(checkpoint)
            if stated is not None:
                warnings.append(
                    f"'{checkpoint.label}' was distilled from another teacher ({stated}) than the one it is "
                    f"compared with, '{teachers[0].label}'."
                )
        else:
            families[None].append(checkpoint)
            if teachers:
                warnings.append(
                    f"The lineage of '{checkpoint.label}' does not name one of the {len(teachers)} teachers: "
                    "it has scores but no recovery. Select a teacher with --teacher."
                )
    labels = _unique_labels(checkpoints)
    entries: list[CheckpointEntry] = []
    for family, students in families.items():
        index = None
        if family is not None:
            index = len(entries)
            plan = next(c for c in teachers if c.weights_id == family)
            entries.append(CheckpointEntry(plan, labels[family], None))
        entries += [CheckpointEntry(student, labels[student.weights_id], index) for student in students]
    return tuple(entries)


def _unique_labels(checkpoints: list[CheckpointPlan]) -> dict[str, str]:
    """Map weights_id to label; checkpoints with equal labels get a suffix from their weights_id."""
    names = [c.label for c in checkpoints]
    return {
        c.weights_id: c.label if names.count(c.label) == 1 else f"{c.label} ({c.weights_id[:6]})"
        for c in checkpoints
    }

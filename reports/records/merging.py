"""Merge the plans of several runs; plans that contradict each other are refused."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.foundation.taxonomy import Protocol
from evalsuite.reports.records.names import find, unique_labels
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
    names: tuple[str, ...] = ()
    """Its labels in the plans and its ids, see `evalsuite.reports.records.names`."""
    paths: tuple[str, ...] = ()
    """Its paths in the plans."""
    runs: frozenset[int] = frozenset()
    """Indices of the runs that have it."""

    @property
    def is_teacher(self) -> bool:
        """Whether the checkpoint is a teacher."""
        return self.plan.role == "teacher"


@dataclass(frozen=True, slots=True)
class DivergedEntry:
    """A student of a report that diverged in training."""

    note: DivergedStudent
    label: str
    """Unique in the report."""

    @property
    def names(self) -> tuple[str, ...]:
        """The label of its note."""
        return (self.note.label,)

    @property
    def paths(self) -> tuple[str, ...]:
        """The folder that its checkpoint would be in, if its note states it."""
        return (self.note.path,) if self.note.path else ()

    @property
    def why(self) -> str:
        """How it diverged, see `DivergedStudent.why`."""
        return self.note.why


@dataclass(frozen=True, slots=True)
class MergedPlan:
    """The merged plans of all runs of a report."""

    runs: tuple[Path, ...]
    plans: tuple[Plan, ...]
    benchmarks: tuple[BenchmarkPlan, ...]
    checkpoints: tuple[CheckpointEntry, ...]
    """Teachers first, each followed by its students; those without a teacher last."""
    warnings: tuple[str, ...]
    diverged: tuple[DivergedEntry, ...] = ()
    """Students that have no checkpoint in any of the runs."""

    @property
    def named(self) -> tuple[CheckpointEntry | DivergedEntry, ...]:
        """Whoever has a name: the checkpoints, then the diverged students."""
        return (*self.checkpoints, *self.diverged)

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
            diverged=tuple(each.note.model_copy(update={"label": each.label}) for each in self.diverged),
            unplanned=self._unplanned(),
        )
        entries = [replace(each, plan=mine) for each, mine in zip(self.checkpoints, checkpoints, strict=True)]
        alone = [replace(each, teacher=None, runs=frozenset({0})) for each in entries]
        again = MergedPlan((), (plan,), plan.benchmarks, _pair_with_teachers(alone, []), ())
        if (again.planned_cells(), again.unread_cells()) != (self.planned_cells(), self.unread_cells()):
            raise DataError(
                "the runs extend checkpoints to different positions (max_length), so that no single plan "
                "says which contexts each checkpoint reads: export their samples one by one"
            )
        if [each.teacher for each in again.checkpoints] != [each.teacher for each in self.checkpoints]:
            raise DataError(
                "a student whose lineage names no teacher of the runs would have another teacher, or none, "
                "in a single plan: select its teacher and all students of it (--checkpoint), or leave the "
                "student out"
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
    checkpoints, diverged = _merge_checkpoints(runs, plans, warnings)
    if selection.teacher is not None:
        who = find(selection.teacher, checkpoints, "--teacher")
        checkpoints = [_with_role(each, "student") for each in checkpoints]
        checkpoints[who] = _with_role(checkpoints[who], "teacher")
    entries = _pair_with_teachers(checkpoints, warnings)
    if names := selection.checkpoints:
        chosen = {find(name, [*entries, *diverged], "--checkpoint") for name in names}
        diverged = [each for i, each in enumerate(diverged, len(entries)) if i in chosen]
        # Where only diverged students are named, their teachers remain.
        trained = {i for i in chosen if i < len(entries)}
        entries = _only(entries, trained or {i for i, each in enumerate(entries) if each.is_teacher})
    warnings += [f"'{each.label}' {each.why}; it has no checkpoint and no scores." for each in diverged]
    return MergedPlan(tuple(runs), plans, benchmarks, entries, tuple(warnings), tuple(diverged))


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
            for field in ("category", "chance", "group", "group_weight"):
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
) -> tuple[list[CheckpointEntry], list[DivergedEntry]]:
    """Every checkpoint of the plans once, by its weights, and every student without, under unique labels."""
    merged: dict[str, CheckpointEntry] = {}
    for number, (run, plan) in enumerate(zip(runs, plans, strict=True)):
        for checkpoint in plan.checkpoints:
            known = merged.get(checkpoint.weights_id)
            if known is None:
                known = CheckpointEntry(checkpoint, checkpoint.label, None, (checkpoint.weights_id,))
            elif known.label != checkpoint.label:
                warnings.append(
                    f"{run}: '{checkpoint.label}' has the same weights as '{known.label}' and is shown under "
                    "that label"
                )
            if checkpoint.role == "teacher":
                known = _with_role(known, "teacher")
            merged[checkpoint.weights_id] = replace(
                known,
                names=tuple(dict.fromkeys((*known.names, checkpoint.label))),
                paths=tuple(dict.fromkeys((*known.paths, *([checkpoint.path] if checkpoint.path else ())))),
                runs=known.runs | {number},
            )
    everywhere = [each for plan in plans for each in plan.checkpoints]
    notes = (each for plan in plans for each in still_diverged(plan.diverged, plan.checkpoints, everywhere))
    found = list(merged.values())
    lost = [
        DivergedEntry(note, note.label) for note in {each.path or each.label: each for each in notes}.values()
    ]
    suffixes = [_digits(each.plan.weights_id) for each in found]
    suffixes += [["diverged", each.note.path] for each in lost]
    labels = iter(unique_labels([*found, *lost], suffixes))
    return [replace(each, label=next(labels)) for each in found], [
        replace(each, label=next(labels)) for each in lost
    ]


def _digits(identifier: str) -> list[str]:
    """The first six digits of an id, and more."""
    return [identifier[:length] for length in range(6, len(identifier))] + [identifier]


def _with_role(entry: CheckpointEntry, role: Literal["teacher", "student"]) -> CheckpointEntry:
    return replace(entry, plan=entry.plan.model_copy(update={"role": role}))


def _only(entries: tuple[CheckpointEntry, ...], chosen: set[int]) -> tuple[CheckpointEntry, ...]:
    """The chosen checkpoints and their teachers."""
    chosen = chosen | {teacher for i in chosen if (teacher := entries[i].teacher) is not None}
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
    checkpoints: list[CheckpointEntry], warnings: list[str]
) -> tuple[CheckpointEntry, ...]:
    """Every teacher followed by its students, in the order of the checkpoints; those without one last."""
    teachers = [each for each in checkpoints if each.is_teacher]
    if not teachers:
        warnings.append(
            "No teacher among the checkpoints: the report has scores, but no recovery and no gap."
        )
    families: dict[str | None, list[CheckpointEntry]] = {each.label: [] for each in teachers} | {None: []}
    for student in (each for each in checkpoints if not each.is_teacher):
        families[_teacher_of(student, teachers, warnings)].append(student)
    entries: list[CheckpointEntry] = []
    for teacher in teachers:
        index = len(entries)
        entries += [teacher, *(replace(each, teacher=index) for each in families[teacher.label])]
    return (*entries, *families[None])


def _teacher_of(student: CheckpointEntry, teachers: list[CheckpointEntry], warnings: list[str]) -> str | None:
    """Label of the teacher that its lineage names, else of the only one of its runs, else of all runs."""
    stated = stated_teacher(student.plan)
    named = [each for each in teachers if each.plan.weights_id == stated]
    among = named or teachers
    found = [each for each in among if each.runs & student.runs] or among
    if len(found) == 1:
        if stated is not None and not named:
            warnings.append(
                f"'{student.label}' was distilled from another teacher ({stated}) than the one it is "
                f"compared with, '{found[0].label}'."
            )
        return found[0].label
    if teachers:
        warnings.append(
            f"The lineage of '{student.label}' does not name one of the {len(found)} teachers: "
            "it has scores but no recovery. Select a teacher with --teacher."
        )
    return None

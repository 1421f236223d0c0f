"""Merge the plans of several runs; plans that contradict each other are refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.reports.records.run_folder import BenchmarkPlan, CheckpointPlan, Plan, ProtocolPlan, read_plan


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


def merge_plans(runs: Sequence[Path], teacher: str | None = None) -> MergedPlan:
    """Read the plans of `runs` and merge them.

    Args:
        runs: run folders.
        teacher: label or weights_id of the only teacher; default: the teachers of the plans.

    Raises:
        RunFolderError: a folder is not a run folder.
        DataError: two runs define a benchmark differently.
        ConfigError: no checkpoint is called `teacher`.
    """
    if not runs:
        raise ConfigError("no run folders given")
    plans = tuple(read_plan(run) for run in runs)
    warnings: list[str] = []
    benchmarks = _merge_benchmarks(runs, plans)
    checkpoints = _merge_checkpoints(runs, plans, warnings)
    if teacher is not None:
        checkpoints = _with_teacher(checkpoints, teacher)
    entries = _pair_with_teachers(checkpoints, warnings)
    return MergedPlan(tuple(runs), plans, benchmarks, entries, tuple(warnings))


def _merge_benchmarks(runs: Sequence[Path], plans: Sequence[Plan]) -> tuple[BenchmarkPlan, ...]:
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
            protocols = dict(known.protocols)
            for name, protocol in benchmark.protocols.items():
                protocols[name] = _merge_protocols(benchmark.name, protocols.get(name), protocol, run)
            contexts = tuple(sorted({*known.contexts, *benchmark.contexts}))
            merged[benchmark.name] = known.model_copy(update={"protocols": protocols, "contexts": contexts})
    return tuple(merged.values())


def _merge_protocols(
    benchmark: str, known: ProtocolPlan | None, new: ProtocolPlan, run: Path
) -> ProtocolPlan:
    if known is None:
        return new
    for field in ("metric", "direction", "units", "num_fewshot", "sampling"):
        _must_agree(benchmark, field, known, new, "an earlier run", run)
    return known.model_copy(update={"seeds": tuple(sorted({*known.seeds, *new.seeds}))})


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

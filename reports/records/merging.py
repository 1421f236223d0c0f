"""Merge the plans of several runs; plans that contradict each other are refused."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.foundation.taxonomy import Protocol
from evalsuite.reports.records.names import Named, digits, find, fits, unique_labels
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.score_files import score_paths, scored_checkpoints
from evalsuite.reports.run import (
    Benchmark,
    Checkpoint,
    DivergedStudent,
    Manifest,
    ProtocolSettings,
    UnplannedCells,
    read_facts,
    read_manifest,
    still_diverged,
)

CellKey = tuple[str, str, int | None]
"""Benchmark, protocol, context."""


@dataclass(frozen=True, kw_only=True)
class CheckpointEntry(Checkpoint):
    """One checkpoint of a report: that of a manifest, under a label that is unique in the report."""

    label_in_run: str
    teacher: int | None = None
    """Index of the teacher that it is compared with; None for a teacher, or if there is none."""
    names: tuple[str, ...] = ()
    """Its labels in the manifests and its ids, see `evalsuite.reports.records.names`."""
    paths: tuple[str, ...] = ()
    """Its paths in the manifests."""
    runs: frozenset[int] = frozenset()
    """Indices of the runs that have it."""
    members: frozenset[tuple[str, str]] = frozenset()
    """(weights_id, fingerprint) of its score rows; no fingerprint where there are no rows yet."""

    @property
    def is_teacher(self) -> bool:
        """Whether the checkpoint is a teacher."""
        return self.role == "teacher"

    @property
    def weights(self) -> frozenset[str]:
        """Its weights_id, and those of whatever was declared to be the same."""
        return frozenset({self.weights_id, *(weights_id for weights_id, _ in self.members)})

    @property
    def scored_as(self) -> tuple[str, ...]:
        """The fingerprints of its score rows, sorted."""
        return tuple(sorted({fingerprint for _, fingerprint in self.members if fingerprint}))

    def has(self, run: int, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint of a run's plan is, or is part of, this one."""
        return (
            run in self.runs
            and checkpoint.weights_id in self.weights
            and (not checkpoint.fingerprints or not {*checkpoint.fingerprints}.isdisjoint(self.scored_as))
        )


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
    plans: tuple[Manifest, ...]
    benchmarks: tuple[Benchmark, ...]
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

    def has_plan_of(self, weights_id: str, fingerprint: str) -> bool:
        """Whether a plan has a checkpoint, selected or not, with such score rows."""
        return any(
            checkpoint.weights_id == weights_id
            and (not checkpoint.fingerprints or fingerprint in checkpoint.fingerprints)
            for plan in self.plans
            for checkpoint in plan.checkpoints
        )

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

    def as_manifest(self) -> Manifest:
        """Return the one manifest of a run folder that holds what all runs have of these checkpoints.

        Raises:
            DataError: one manifest cannot say it.
        """
        suites = dict.fromkeys(name for plan in self.plans for name in plan.suite.split(" + "))
        checkpoints = list(map(self._planned, self.checkpoints))
        plan = Manifest(
            suite=" + ".join(suites),
            created=max(plan.created for plan in self.plans),
            benchmarks=self.benchmarks,
            checkpoints=tuple(each.stated for each in checkpoints),
            max_length=max((plan.max_length for plan in self.plans if plan.max_length), default=None),
            diverged=tuple(replace(each.note, label=each.label) for each in self.diverged),
            unplanned=self._unplanned(),
        )
        alone = [
            replace(each, teacher=None, runs=frozenset({0}), names=(*each.names, each.label))
            for each in checkpoints
        ]
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

    def _planned(self, entry: CheckpointEntry) -> CheckpointEntry:
        """How the plan of all runs describes a checkpoint."""
        weights = [each.weights_id for each in self.checkpoints]
        several = len(entry.scored_as) > 1 or weights.count(entry.weights_id) > 1
        teacher = None if entry.teacher is None else self.checkpoints[entry.teacher]
        return replace(
            entry,
            fingerprints=entry.scored_as if several else (),
            compared_with=teacher.label if teacher and weights.count(teacher.weights_id) > 1 else "",
        )

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
        for run, plan in enumerate(self.plans):
            for checkpoint in plan.checkpoints:
                who = [i for i, each in enumerate(self.checkpoints) if each.has(run, checkpoint)]
                limit = plan.limit(checkpoint)
                for benchmark in plan.benchmarks if who else ():
                    for protocol, how in benchmark.protocols.items():
                        for context in how.contexts:
                            if plan.has(checkpoint, benchmark.name, protocol, context):
                                key = benchmark.name, protocol, context
                                yield from ((i, key, limit) for i in who)


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
    plans = tuple(read_manifest(run) for run in runs)
    warnings: list[str] = []
    benchmarks = _merge_benchmarks(runs, plans, warnings)
    checkpoints, diverged = _merge_checkpoints(runs, plans, selection.same, warnings)
    if selection.teacher is not None:
        way_out = f", or declare them one model with --same '{selection.teacher}'"
        who = find(selection.teacher, checkpoints, "--teacher", way_out)
        checkpoints = [replace(each, role="student") for each in checkpoints]
        checkpoints[who] = replace(checkpoints[who], role="teacher")
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
    runs: Sequence[Path], plans: Sequence[Manifest], warnings: list[str]
) -> tuple[Benchmark, ...]:
    merged: dict[str, Benchmark] = {}
    source: dict[str, Path] = {}
    for run, plan in zip(runs, plans, strict=True):
        for benchmark in plan.benchmarks:
            known = merged.get(benchmark.name)
            if known is None:
                merged[benchmark.name], source[benchmark.name] = benchmark, run
                continue
            for field in ("files_hash", "category", "chance", "group", "group_weight"):
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
            merged[benchmark.name] = replace(
                known,
                protocols=protocols,
                contexts=contexts,
                cluster_column=known.cluster_column or benchmark.cluster_column,
            )
    return tuple(merged.values())


def _merge_protocols(
    benchmark: str, known: ProtocolSettings | None, new: ProtocolSettings, run: Path, warnings: list[str]
) -> ProtocolSettings:
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
                f"{run}/run.json: benchmark '{benchmark}'{place} has {other:,} documents, {one:,} in an "
                f"earlier run; a cell is complete with {counts[context]:,}."
            )
    documents = counts[None] if None in counts else {c: n for c, n in counts.items() if c is not None}
    seeds = tuple(sorted({*known.seeds, *new.seeds}))
    return replace(known, seeds=seeds, documents=documents)


def _must_agree(
    benchmark: str,
    field: str,
    one: Benchmark | ProtocolSettings,
    other: Benchmark | ProtocolSettings,
    first: Path | str,
    second: Path,
) -> None:
    a, b = getattr(one, field), getattr(other, field)
    if a != b:
        raise DataError(
            f"{second}/run.json: benchmark '{benchmark}' has {field} {b!r}, but {a!r} in {first}: "
            "the runs cannot be merged; compare them separately"
        )


def _merge_checkpoints(
    runs: Sequence[Path], plans: Sequence[Manifest], same: Sequence[str], warnings: list[str]
) -> tuple[list[CheckpointEntry], list[DivergedEntry]]:
    """Every checkpoint of the plans once, and every student that has none, under unique labels."""
    parts = [part for number, plan in enumerate(plans) for part in _parts(number, runs[number], plan)]
    found = _connected(parts)
    for part in parts:
        known = next(each for each in found if part.runs <= each.runs and part.weights <= each.weights)
        if part.label != known.label:
            warnings.append(
                f"{runs[min(part.runs)]}: '{part.label}' has the same weights as '{known.label}' and is "
                "shown under that label"
            )
    everywhere = [each for plan in plans for each in plan.checkpoints]
    notes = (each for plan in plans for each in still_diverged(plan.diverged, plan.checkpoints, everywhere))
    lost = [
        DivergedEntry(note, note.label) for note in {each.path or each.label: each for each in notes}.values()
    ]
    facts = _facts(found, runs)
    harnesses = [plan.harness for plan in plans]
    found, lost = _labelled(found, lost, facts, harnesses)
    for declaration in same:
        found = _declared(found, declaration, harnesses)
    return _labelled(found, lost, facts, harnesses) if same else (found, lost)


def _parts(number: int, run: Path, plan: Manifest) -> Iterator[CheckpointEntry]:
    """The checkpoints of one run, by fingerprint: no answer counts for a checkpoint of another one."""
    paths = [
        path for benchmark, protocol in plan.cells() for path in score_paths(run, benchmark.name, protocol)
    ]
    scored = sorted(scored_checkpoints(paths))
    for checkpoint in plan.checkpoints:
        weights_id = checkpoint.weights_id
        entry = CheckpointEntry(
            **vars(checkpoint),
            label_in_run=checkpoint.label,
            names=(weights_id, checkpoint.label),
            paths=(checkpoint.path,) if checkpoint.path else (),
            runs=frozenset({number}),
        )
        groups = [[name] for weights, name in scored if weights == weights_id] or [[""]]
        for group in [checkpoint.fingerprints] if checkpoint.fingerprints else groups:
            yield replace(entry, members=frozenset((weights_id, name) for name in group))


def _connected(parts: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
    """Join the parts with a fingerprint in common; one without score rows belongs to all of its weights."""
    found: dict[int, CheckpointEntry] = {}
    without = [(at, part) for at, part in enumerate(parts) if not part.scored_as]
    for at, part in enumerate(parts):
        if part.scored_as:
            known = [i for i, each in found.items() if not each.members.isdisjoint(part.members)]
            found[min([*known, at])] = _joined([*(found.pop(i) for i in known), part])
    for at, part in without:
        known = [i for i, each in found.items() if not each.weights.isdisjoint(part.weights)]
        for i in known:
            found[i] = replace(_joined([found[i], part]), members=found[i].members)
        if not known:
            found[at] = part
    return [found[i] for i in sorted(found)]


def _joined(entries: Sequence[CheckpointEntry]) -> CheckpointEntry:
    """One checkpoint of several, called as the first."""
    first = entries[0]
    entry = replace(
        first,
        names=tuple(dict.fromkeys(name for each in entries for name in each.names)),
        paths=tuple(dict.fromkeys(path for each in entries for path in each.paths)),
        runs=frozenset().union(*(each.runs for each in entries)),
        members=frozenset().union(*(each.members for each in entries)),
    )
    return replace(entry, role="teacher" if any(each.is_teacher for each in entries) else "student")


def _harness(entry: CheckpointEntry, harnesses: Sequence[str | None]) -> str | None:
    """The harness that evaluated it, of which its weights_id is the hash of a name; None: evalsuite."""
    found = {harnesses[run] for run in entry.runs}
    return found.pop() if len(found) == 1 else None


def _declared(
    found: list[CheckpointEntry], declaration: str, harnesses: Sequence[str | None]
) -> list[CheckpointEntry]:
    """Join what `RunSelection.same` declares to be one checkpoint.

    A log states no weights: under one name, each harness has a weights_id of its own.

    Raises:
        ConfigError: a name that fits none, or several models, or a declaration of a single one.
    """
    label, is_list, names = declaration.partition("=")
    where = f"--same {declaration}"
    if is_list:
        chosen = list(dict.fromkeys(find(name.strip(), found, where) for name in names.split(",")))
    else:
        chosen = [i for i, each in enumerate(found) if fits(label, each)] or [find(label, found, where)]
        weights = {found[i].weights_id: _harness(found[i], harnesses) for i in chosen}
        if len(weights) > len(set(weights.values())):
            labels = ", ".join(f"'{found[i].label}'" for i in chosen)
            raise ConfigError(
                f"{where}: {labels} have different weights; --same '{label}=NAME,NAME' declares that they "
                "are one model, evaluated by several harnesses"
            )
    if is_list and (not label or len(chosen) < 2):
        raise ConfigError(f"{where}: LABEL=NAME,NAME gives several checkpoints one label")
    entry = _joined([found[i] for i in chosen])
    label = label if is_list else entry.label_in_run
    entry = replace(entry, label_in_run=label, names=(*entry.names, label))
    kept = [each for i, each in enumerate(found) if i not in chosen]
    kept.insert(min(chosen), entry)
    return kept


def _labelled(
    found: Sequence[CheckpointEntry],
    lost: Sequence[DivergedEntry],
    facts: Mapping[str, Mapping[str, str]],
    harnesses: Sequence[str | None],
) -> tuple[list[CheckpointEntry], list[DivergedEntry]]:
    """The same with labels that fit one alone: by harness or weights, else by what tells engines apart."""
    suffixes = []
    for entry in found:
        others = [each for each in found if each.weights_id == entry.weights_id]
        harness = _harness(entry, harnesses)
        suffixes.append([*([harness] if harness else []), *digits(entry.weights_id)])
        if len(others) > 1:
            mine, *rest = (
                {key: value for name in each.scored_as for key, value in facts.get(name, {}).items()}
                for each in (entry, *(other for other in others if other is not entry))
            )
            differing = [key for key in mine if any(mine[key] != each.get(key) for each in rest)]
            text = " ".join(mine[key] for key in differing[:3])
            suffixes[-1] = [*([text] if text else []), *digits("+".join(entry.scored_as) or "no scores")]
    suffixes += [["diverged", each.note.path] for each in lost]
    plain: list[Named] = [*(replace(each, label=each.label_in_run) for each in found), *lost]
    labels = iter(unique_labels(plain, suffixes))
    return (
        [
            replace(each, label=next(labels), names=tuple(dict.fromkeys((*each.names, *each.scored_as))))
            for each in found
        ],
        [replace(each, label=next(labels)) for each in lost],
    )


def _facts(found: Sequence[CheckpointEntry], runs: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Fingerprint → what it covers, as the runs' environments state it; only of weights that have several."""
    weights = Counter(each.weights_id for each in found)
    facts: dict[str, dict[str, str]] = {}
    for number in sorted({n for each in found if weights[each.weights_id] > 1 for n in each.runs}):
        environment = read_facts(runs[number])
        for one in [environment, *_mappings(environment.get("runs"))]:
            for engine in _mappings(one.get("engines")):
                facts[str(engine.get("fingerprint"))] = _texts(engine)
        for imported in _mappings([environment.get("imported")]):
            for each in (each for each in found if number in each.runs):
                facts |= dict.fromkeys(each.scored_as, _texts(imported))
    return facts


def _mappings(value: Any) -> list[dict[str, Any]]:
    """The mappings in a list or in the values of another one; an environment may hold anything."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [each for each in values if isinstance(each, dict)]


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """What a label can show: engine, device and dtype as they are, other values with their names."""
    alone = {"engine": "", "device": "", "dtype": "", "harness": ""}
    flat = {key: value for each in (facts, *_mappings(dict(facts))) for key, value in each.items()}
    return {
        key: f"{alone.get(key, f'{key} ')}{value}"
        for key, value in sorted(flat.items(), key=lambda each: each[0] not in alone)
        if isinstance(value, str | int | float) and key not in ("fingerprint", "log") and len(str(value)) < 40
    }


def _only(entries: tuple[CheckpointEntry, ...], chosen: set[int]) -> tuple[CheckpointEntry, ...]:
    """The chosen checkpoints and their teachers."""
    chosen = chosen | {teacher for i in chosen if (teacher := entries[i].teacher) is not None}
    place = {old: new for new, old in enumerate(sorted(chosen))}
    return tuple(
        replace(entries[i], teacher=None if (teacher := entries[i].teacher) is None else place[teacher])
        for i in sorted(chosen)
    )


def stated_teacher(checkpoint: Checkpoint) -> str | None:
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
    """Label of the teacher that its plan or lineage names, else of the only one of its runs, or of all."""
    for each in teachers:
        if student.compared_with in each.names and each.runs & student.runs:
            return each.label
    stated = stated_teacher(student)
    named = [each for each in teachers if stated in each.weights]
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

"""What the protocol concludes from scored runs: admission, contrasts, what could be found, choices."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.foundation import DataError
from evalsuite.reports.admission import AdmissionRule, admit, find_checkpoint
from evalsuite.reports.run import Checkpoint, read_environment, read_manifest
from evalsuite.reports.statistics.hypothesis_tests import holm
from evalsuite.reports.studies.decision.cells import completion_cells, needle_cells, short_task_cells
from evalsuite.reports.studies.decision.choice import Choice, choose
from evalsuite.reports.studies.decision.effects import Cell, Effect, Run, between, detectable, effect
from evalsuite.reports.studies.decision.exploration import Explored, Variant, explore
from evalsuite.reports.studies.decision.noise import Noise, noise_alone
from evalsuite.reports.studies.decision.protocol import Protocol, Teacher, control

NEEDLE_LEAD = 20.0
"""Points that the teacher leads by in every way, at the lower end of its interval, where needles count."""
SHORT_LEAD = 10.0
"""Points that it leads by, plain and padded, where a short task counts; its interval also lies above 0."""
EXCLUDED = 10.0
"""Points that `protocol` and `answers` must exclude where length or distractors are to explain the loss."""
PRIMARY = ("pure", "hybrid")
OPEN = "exploratory"
CLOSED = "heldout"


@dataclass(frozen=True)
class Lead:
    """The teacher's lead over chance in a cell by one way, in points."""

    of: str
    cell: str
    way: str
    documents: int
    chance: float
    lead: float
    low: float
    why: str
    """Why the cell does not count; empty if it does."""


@dataclass(frozen=True)
class Row:
    """One contrast of one family of one teacher."""

    teacher: str
    family: str
    contrast: str
    effect: Effect | None
    """Over all admitted cells; None where there is none, or too few runs."""
    between: Effect | None
    """Over the cells whose mean share lies between floor and ceiling in one of the ways."""
    detectable: float | None
    """The smallest contrast that would have been found with the power of the protocol, in points."""
    p_adjusted: float | None = None
    """Holm's, over the contrasts of both teachers in this family."""
    why: str = ""
    """Why there is no effect."""


@dataclass(frozen=True)
class Share:
    """Percent of the teacher's lead that one run keeps in a cell by one way."""

    teacher: str
    run: Run
    of: str
    cell: str
    way: str
    score: float
    share: float
    admitted: bool


@dataclass(frozen=True)
class Findings:
    """Everything of one teacher."""

    name: str
    teacher: Teacher
    half: str
    runs: tuple[Run, ...]
    missing: tuple[Run, ...]
    leads: tuple[Lead, ...]
    unmeasured: Mapping[str, str]
    """Completion task without a cell → why."""
    rows: tuple[Row, ...]
    shares: tuple[Share, ...]
    explored: Explored
    noise: tuple[Noise, ...]
    choices: tuple[Choice, ...]
    origin: str
    """When students were trained, and on which machines and packages responses were computed."""


def analyse(run: Path, protocol: Protocol, name: str, half: str = OPEN) -> Findings:
    """Return the findings on one teacher.

    Args:
        run: run folder with the scores of its one teacher, and of students labeled `STUDENT-seedN`.
        protocol: what is compared.
        name: of the teacher in the protocol.
        half: of the needles.

    Raises:
        ConfigError: the run has no teacher, or several.
        DataError: a checkpoint lacks documents that the teacher has.
    """
    teacher, manifest = protocol.teachers[name], read_manifest(run)
    label = find_checkpoint(manifest, None, run).label
    planned = {
        f"{student}-seed{seed}": Run(student, seed) for student in teacher.students for seed in protocol.seeds
    }
    found = {each.label for each in manifest.checkpoints}
    labels = {text: each for text, each in planned.items() if text in found}
    controls = {
        text: Run(text, protocol.seeds[0]) for text in map(control, teacher.untrained) if text in found
    }
    all_labels = labels | controls
    decisions = admit(run, label, AdmissionRule(), protocol.completion_tasks)
    refused = {each.benchmark: each.why for each in decisions}
    chance = {
        each.benchmark: {part.protocol: part.constant for part in each.protocols}
        for each in decisions
        if each.protocols
    }
    groups = {
        "needles": needle_cells(run, protocol, half, label, all_labels),
        "short_tasks": short_task_cells(run, protocol, label, all_labels),
        "completion_tasks": completion_cells(run, protocol, chance, label, all_labels),
    }
    leads = [each for of, cells in groups.items() for each in _leads(of, cells, refused)]
    counted = {(each.of, each.cell) for each in leads} - {(each.of, each.cell) for each in leads if each.why}
    admitted = {of: [cell for cell in cells if (of, cell.name) in counted] for of, cells in groups.items()}
    rows = [
        _row(protocol, name, family, contrast, admitted, list(labels.values()))
        for family in dict.fromkeys(teacher.students.values())
        for contrast in protocol.contrasts
    ]
    return Findings(
        name,
        teacher,
        half,
        tuple(labels.values()),
        tuple(each for text, each in planned.items() if text not in labels),
        tuple(leads),
        {task: why for task, why in refused.items() if task not in chance},
        tuple(rows),
        tuple(
            share
            for of, cells in groups.items()
            for cell in cells
            for share in _shares(name, of, cell, (of, cell.name) in counted)
        ),
        explore(protocol, name, admitted, list(labels.values())),
        tuple(noise_alone(run, protocol, name, half, label, admitted["needles"], list(labels.values()))),
        tuple(_choices(run, protocol, label, labels, admitted) if half == CLOSED else ()),
        _origin(read_environment(run), [each for each in manifest.checkpoints if each.label in labels]),
    )


def corrected(protocol: Protocol, findings: Sequence[Findings]) -> list[Row]:
    """Return the rows of all teachers with Holm's p-values, per family over contrasts and teachers.

    A test that is not made yet counts with a p-value of 1.
    """
    rows = [row for each in findings for row in each.rows]
    made: dict[str, list[Row]] = {}
    for row in rows:
        if row.effect is not None:
            made.setdefault(row.family, []).append(row)
    adjusted: dict[int, float] = {}
    for family, tests in made.items():
        planned = len(protocol.contrasts) * sum(
            family in teacher.students.values() for teacher in protocol.teachers.values()
        )
        p_values = [row.effect.p for row in tests if row.effect is not None] + [1.0] * (planned - len(tests))
        adjusted |= {id(row): p for row, p in zip(tests, holm(p_values), strict=False)}
    return [replace(row, p_adjusted=adjusted.get(id(row))) for row in rows]


def claim(protocol: Protocol, rows: Sequence[Row], variants: Sequence[Variant] = ()) -> str:
    """Return the key of the claim that holds; an empty text before both teachers are analysed.

    A contrast excludes `EXCLUDED` points only if its variants do, too (fifth amendment).
    """
    if {row.teacher for row in rows} != set(protocol.teachers):
        return ""

    def proven(contrast: str, family: str) -> bool:
        tests = _of(rows, contrast, family)
        return len(tests) == len(protocol.teachers) and all(
            row.effect is not None
            and row.effect.low > 0
            and row.p_adjusted is not None
            and row.p_adjusted < protocol.power.alpha
            for row in tests
        )

    def excluded(contrast: str, family: str) -> bool:
        tests = _of(rows, contrast, family)
        return (
            len(tests) == len(protocol.teachers)
            and all(row.effect is not None and row.effect.high < EXCLUDED for row in tests)
            and all(
                each.effect.high < EXCLUDED
                for each in variants
                if (each.contrast, each.family) == (contrast, family)
            )
        )

    for family in PRIMARY:
        if any(proven(contrast, family) for contrast in ("protocol", "answers")):
            return "protocol_gap"
    for family in PRIMARY:
        if any(proven(contrast, family) for contrast in ("length", "distractors")) and all(
            excluded(contrast, family) for contrast in ("protocol", "answers")
        ):
            return "length_or_distractors"
    return "otherwise"


def _of(rows: Sequence[Row], contrast: str, family: str) -> list[Row]:
    return [row for row in rows if (row.contrast, row.family) == (contrast, family)]


def _leads(of: str, cells: Sequence[Cell], refused: Mapping[str, str]) -> list[Lead]:
    """The teacher's leads in some cells, and why a cell does not count."""
    leads = []
    for cell in cells:
        found = {way: cell.lead(way) for way in cell.teacher}
        reasons = [reason for way, lead in found.items() if (reason := _too_small(of, way, *lead))]
        why = refused[cell.name] if of == "completion_tasks" else "; ".join(reasons)
        leads += [
            Lead(of, cell.name, way, cell.documents, cell.chance[way], *lead, why)
            for way, lead in found.items()
        ]
    return leads


def _too_small(of: str, way: str, lead: float, low: float) -> str:
    if of == "needles" and low < NEEDLE_LEAD:
        return f"{way}: the lead's lower end is {low:.1f} points (at least {NEEDLE_LEAD:g} needed)"
    if of == "short_tasks" and (lead < SHORT_LEAD or low <= 0):
        return f"{way}: the lead is {lead:.1f} points (at least {SHORT_LEAD:g} needed)"
    return ""


def _row(
    protocol: Protocol,
    name: str,
    family: str,
    contrast: str,
    admitted: Mapping[str, Sequence[Cell]],
    runs: Sequence[Run],
) -> Row:
    """One contrast of one family, over all admitted cells and over those between floor and ceiling."""
    students = protocol.teachers[name].students
    own = [run for run in runs if students[run.student] == family]
    question = protocol.contrasts[contrast]
    cells = admitted[question.of]
    try:
        whole = effect(cells, own, question.ways)
    except ValueError as error:
        return Row(name, family, contrast, None, None, None, why=str(error))
    inner = between(cells, own, question.ways)
    power = protocol.power
    count = len({run.student for run in own})
    return Row(
        name,
        family,
        contrast,
        whole,
        effect(inner, own, question.ways) if inner else None,
        detectable(
            whole.run_sd,
            whole.document_error,
            count,
            len(own) // count,
            power.alpha,
            power.tests,
            power.beta,
        ),
    )


def _shares(name: str, of: str, cell: Cell, admitted: bool) -> list[Share]:
    return [
        Share(
            name,
            run,
            of,
            cell.name,
            way,
            float(scores[way].mean()),
            cell.share(run, way),
            admitted,
        )
        for run, scores in cell.runs.items()
        for way in scores
    ]


def _choices(
    run: Path,
    protocol: Protocol,
    label: str,
    labels: Mapping[str, Run],
    admitted: Mapping[str, Sequence[Cell]],
) -> list[Choice]:
    """Regret of choosing by each measure, in needles of the held-out half that generation finds."""
    closed = admitted["needles"]
    if not closed:
        return []
    explored = needle_cells(run, protocol, OPEN, label, labels)
    names = {cell.name for cell in closed}
    measures: dict[str, dict[Run, float]] = {
        f"short tasks, {way}": {
            each: float(np.mean([cell.runs[each][way].mean() for cell in admitted["short_tasks"]]))
            for each in labels.values()
        }
        for way in ("plain", "padded")
        if admitted["short_tasks"]
    }
    measures["KL on held-out text"] = {each: -_validation_kl(run, text) for text, each in labels.items()}
    for way in protocol.ways:
        measures[f"needles, {way}"] = {
            each: float(np.mean([cell.runs[each][way].mean() for cell in explored if cell.name in names]))
            for each in labels.values()
        }
    target = {
        each: np.concatenate([cell.runs[each]["generated"] for cell in closed]) for each in labels.values()
    }
    return choose(measures, target)


def _origin(environment: Mapping[str, Any], students: Sequence[Checkpoint]) -> str:
    dates = sorted({str(each.lineage["created"])[:10] for each in students if "created" in each.lineage})
    machines = [
        f"{', '.join(machine.get('accelerators') or ['CPU'])} (Python {machine.get('python')}, "
        + ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
        + ")"
        for machine in environment.get("inference_hosts") or [environment]
    ]
    trained = f"students trained {' and '.join(dates)}; " if dates else ""
    return f"{trained}responses on {'; '.join(machines)}."


def _validation_kl(run: Path, label: str) -> float:
    """The last KL divergence on held-out text that the training of a checkpoint logged.

    Raises:
        DataError: the run folder has none.
    """
    path = run / "training" / f"{label}.jsonl"
    values = []
    if path.exists():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        values = [row["validation_kl"] for row in rows if "validation_kl" in row]
    if not values:
        raise DataError(f"{path}: no 'validation_kl', by which the protocol chooses")
    return float(values[-1])

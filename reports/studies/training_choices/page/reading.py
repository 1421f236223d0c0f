"""Reads a study: its design, the score rows of a run folder, prompts, exposure and times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evalsuite.foundation import DataError, read_json, read_jsonl
from evalsuite.foundation.strict import parse
from evalsuite.foundation.taxonomy import PROTOCOLS, names_answer
from evalsuite.reports.admission import find_checkpoint
from evalsuite.reports.records.reading import NO_CONTEXT, read_score_files
from evalsuite.reports.records.score_files import score_paths
from evalsuite.reports.run import Benchmark, Checkpoint, read_manifest
from evalsuite.reports.studies.training_choices.analysis.decomposition import Responses
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.design import DESIGN, TEACHER, Axis, StudyRun

PROMPT_COLUMNS = ("prompt", "passage", "context", "support", "question", "text")
"""Columns of a document that a prompt shows."""


@dataclass(frozen=True)
class ScoredDocuments:
    """The scores of checkpoints on the documents that the teacher has under both protocols."""

    scores: StudyScores
    documents: tuple[tuple[str, int], ...]
    """Id and context of each document of `scores`."""
    titles: Mapping[str, str]
    """Benchmark → title."""
    responses: Mapping[str, Responses]
    """Run name or `TEACHER` → its responses on the documents of `scores`."""


@dataclass(frozen=True)
class StudyData(ScoredDocuments):
    """What the page needs."""

    title: str
    axes: Mapping[str, Axis]
    hybrids: tuple[str, ...]
    prompts: tuple[str, ...]
    checkpoints: Mapping[str, Checkpoint]
    """Run name or `TEACHER` → what the run folder says of its checkpoint."""
    exposure: Mapping[str, list[dict[str, Any]]]
    """Run name → rows of the admitted benchmarks."""
    gpu_seconds: float
    """Time in which a GPU had a job of the study, summed over GPUs."""
    reasons: Mapping[str, str]
    """Run → why it failed last."""
    is_part: bool = False
    """Whether another page has these benchmarks and more of the same runs."""


def read_study(
    run: Path,
    folder: Path,
    benchmarks: Sequence[str],
    teacher: str | None = None,
    *,
    is_part: bool = False,
) -> StudyData:
    """Read a study.

    Args:
        run: run folder with the scores of the teacher and of the students, whose labels are the runs' names.
        folder: output of the study: ``study.json``, ``exposure/``, ``runs.jsonl``.
        benchmarks: those that the page shows.
        teacher: a name of the teacher; None: the plan's teacher.

    Raises:
        ConfigError: no such teacher.
        DataError: no benchmark or an unknown one, or no documents under both protocols.
    """
    file = folder / DESIGN
    design, plan = read_json(file), read_manifest(run)
    planned = tuple(StudyRun(each["student"], each["arm"], each["seed"]) for each in design["runs"])
    labels = {find_checkpoint(plan, teacher, run).label: TEACHER} | {each.name: each.name for each in planned}
    found = read_documents(run, benchmarks, labels, planned)
    jobs = list(read_jsonl(folder / "runs.jsonl"))
    return StudyData(
        **vars(found),
        title=str(design["name"]),
        axes={name: parse(axis, Axis, f"{file}: axes.{name}") for name, axis in design["axes"].items()},
        hybrids=tuple(design["hybrids"]),
        prompts=tuple(_prompts(run, found)),
        checkpoints={labels[each.label]: each for each in plan.checkpoints if each.label in labels},
        exposure={
            each.name: _exposure(folder, each.name, found.scores.names)
            for each in planned
            if found.scores.has(each)
        },
        gpu_seconds=gpu_seconds(jobs),
        reasons={row["name"]: row["error"].strip().splitlines()[-1] for row in jobs if row["error"]},
        is_part=is_part,
    )


def read_documents(
    run: Path,
    benchmarks: Sequence[str],
    labels: Mapping[str, str],
    planned: tuple[StudyRun, ...] = (),
    *,
    one_protocol: bool = False,
) -> ScoredDocuments:
    """Read the scores of checkpoints; those that lack a document have none.

    Args:
        run: run folder with scores.
        benchmarks: those that are read.
        labels: label of a checkpoint → its name in the scores; the teacher's is `TEACHER`.
        planned: runs of a study.
        one_protocol: read benchmarks of a single protocol, too; under the other one their scores are NaN.

    Raises:
        DataError: no benchmark or an unknown one, or no documents under the protocols of one.
    """
    plan = read_manifest(run)
    known = {
        each.name: each for each in plan.benchmarks if one_protocol or set(PROTOCOLS) <= _protocols(each)
    }
    names = tuple(benchmarks)
    if not names:
        raise DataError(
            f"{run}: no benchmark is admitted, so there is nothing to compare (`evalsuite admit`)"
        )
    if unknown := [name for name in names if name not in known]:
        wanted = "" if one_protocol else " with both protocols"
        raise DataError(f"{run}: no benchmark {unknown[0]}{wanted}; it has {', '.join(known)}")
    cells = {name: _cell(run, known[name], labels) for name in names}
    keys = [(name, key) for name in names for key in cells[name].documents]
    index = {name: place for place, name in enumerate(names)}
    values: dict[str, dict[str, np.ndarray]] = {
        protocol: {
            label: np.concatenate([cells[name].values[protocol][label] for name in names])
            for label in labels.values()
            if all(label in cells[name].values[p] for name in names for p in PROTOCOLS)
        }
        for protocol in PROTOCOLS
    }
    if TEACHER not in values["generation"]:
        raise DataError(f"{run}: the teacher has no scores of some benchmark under its protocols")
    chance: dict[str, np.ndarray] = {
        p: np.concatenate([cells[name].chance[p] for name in names]) for p in PROTOCOLS
    }
    scores = StudyScores(planned, np.array([index[name] for name, _ in keys]), names, values, chance)
    responses = {
        label: Responses(
            *(
                np.concatenate([getattr(cells[name].responses[label], field) for name in names])
                for field in ("outcome", "extracted")
            )
        )
        for label in values["generation"]
    }
    titles = {name: known[name].title for name in names}
    return ScoredDocuments(scores, tuple(key for _, key in keys), titles, responses)


def gpu_seconds(jobs: Sequence[Mapping[str, Any]]) -> float:
    """Return the time in which a GPU had a job, summed over GPUs; jobs at once on one GPU count once.

    Args:
        jobs: rows of ``runs.jsonl``, each with `gpu`, `time` (its end) and `seconds`.
    """
    total = 0.0
    for gpu in {job["gpu"] for job in jobs}:
        until = 0.0
        for start, end in sorted((j["time"] - j["seconds"], j["time"]) for j in jobs if j["gpu"] == gpu):
            total += max(0.0, end - max(start, until))
            until = max(until, end)
    return total


@dataclass(frozen=True)
class _Cell:
    documents: tuple[tuple[str, int], ...]
    values: Mapping[str, Mapping[str, np.ndarray]]
    chance: Mapping[str, np.ndarray]
    responses: Mapping[str, Responses]


def _protocols(benchmark: Benchmark) -> set[str]:
    return {str(protocol) for protocol in benchmark.protocols}


def _cell(run: Path, benchmark: Benchmark, labels: Mapping[str, str]) -> _Cell:
    """The scores of a benchmark on the documents that the teacher has under each of its protocols."""
    own_protocols = [protocol for protocol in PROTOCOLS if protocol in _protocols(benchmark)]
    frames = {protocol: _frame(run, benchmark, protocol, labels) for protocol in own_protocols}
    shared = [set(frame.loc[frame["run"] == TEACHER, "key"]) for frame in frames.values()]
    documents = tuple(sorted(set.intersection(*shared)))
    if not documents:
        raise DataError(
            f"{run}: {benchmark.name} has no document of the teacher under {' and '.join(own_protocols)}"
        )
    values: dict[str, dict[str, np.ndarray]] = {}
    chance: dict[str, np.ndarray] = {}
    responses = {}
    for protocol, frame in frames.items():
        values[protocol] = {}
        for label, rows in frame.groupby("run", sort=False):
            own = rows.drop_duplicates("key").set_index("key").reindex(list(documents))
            if own["value"].isna().any():
                continue
            values[protocol][str(label)] = own["value"].to_numpy(dtype=float)
            if label == TEACHER:
                if own["chance"].isna().any():
                    raise DataError(f"{run}: {benchmark.name} has no chance level under {protocol}")
                chance[protocol] = own["chance"].to_numpy(dtype=float)
            if protocol == "generation":
                extracted = own["extracted"].fillna("").astype(str)
                responses[str(label)] = Responses(own["outcome"].astype(str).to_numpy(), extracted.to_numpy())
    nothing = np.full(len(documents), np.nan)
    for protocol in set(PROTOCOLS) - set(own_protocols):
        (other,) = own_protocols
        values[protocol], chance[protocol] = dict.fromkeys(values[other], nothing), nothing
        if protocol == "generation":
            empty = np.full(len(documents), "")
            responses = dict.fromkeys(values[other], Responses(empty, empty))
    return _Cell(documents, values, chance, responses)


def _frame(run: Path, benchmark: Benchmark, protocol: str, labels: Mapping[str, str]) -> pd.DataFrame:
    """Columns run, key, value, outcome and, under generation, extracted."""
    metric = benchmark.protocols[protocol].metric  # type: ignore[index]  # the keys are these very texts
    paths = score_paths(run, benchmark.name, protocol)
    if not paths:
        raise DataError(f"{run}: {benchmark.name} has no scores under {protocol}")
    frame, _ = read_score_files(paths, [metric], extracted=protocol == "generation")
    found = pd.DataFrame(
        {
            "run": frame["checkpoint"].astype(str).map(labels),
            "key": list(zip(frame["doc_id"], frame["context"], strict=True)),
            "value": frame[f"value.{metric}"],
            "chance": frame["chance"],
            "outcome": frame["outcome"],
        }
    )
    if protocol == "generation":
        found["extracted"] = frame["extracted"].where(frame["outcome"].astype(str).map(names_answer))
    return found[found["run"].notna()]


def _prompts(run: Path, found: ScoredDocuments) -> list[str]:
    scores, rows = found.scores, {}
    for name in scores.names:
        for document in read_jsonl(run / "documents" / f"{name}.jsonl"):
            context = NO_CONTEXT if document["context"] is None else document["context"]
            shown = [str(document["row"][each]) for each in PROMPT_COLUMNS if each in document["row"]]
            rows[name, (document["doc_id"], context)] = "\n".join(shown)
    return [rows[scores.names[b], key] for b, key in zip(scores.benchmarks, found.documents, strict=True)]


def _exposure(folder: Path, name: str, benchmarks: Sequence[str]) -> list[dict[str, Any]]:
    path = folder / "exposure" / f"{name}.jsonl"
    return [row for row in read_jsonl(path) if row["benchmark"] in benchmarks]

"""Averages of lm-eval's `results_*.json` without samples, as figures of the ledger.

Format: lm-eval 0.4.3 to 0.4.13, `lm_eval/loggers/evaluation_tracker.py`. Scores are never paired by document.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evalsuite.foundation import DataError
from evalsuite.foundation.strict import parse
from evalsuite.imported_logs import known_benchmark
from evalsuite.reports.imports.fields import Fields, read_object
from evalsuite.reports.imports.listing import files_below, found_below
from evalsuite.reports.studies.ledger.figures import Figure, Kind


class _Average(NamedTuple):
    kind: Kind
    score: float
    error: float | None
    documents: int | None
    """None where the average is over parts of several sizes."""
    settings: dict[str, str]
    """What student and teacher must have in common."""


class _Model(NamedTuple):
    name: str
    parameters: float
    source: str
    averages: dict[str, _Average]


def read_averages(teacher: str, students: Sequence[str]) -> list[Figure]:
    """Figures of students from logs of averages, on the benchmarks that both evaluated in one way.

    Their notes name the others.

    Args:
        teacher: `results_*.json` or a folder with several, optionally as NAME=PATH.
        students: likewise.

    Raises:
        DataError: no such log, logs of several models, a benchmark in two logs, or none to compare.
        ConfigError: a number outside its range.
    """
    of = _model(teacher)
    return [figure for student in students for figure in _figures(of, _model(student))]


def _figures(teacher: _Model, student: _Model) -> list[Figure]:
    names = dict.fromkeys([*teacher.averages, *student.averages])
    left = {
        name: why
        for name in names
        if (why := _why_not(teacher.averages.get(name), student.averages.get(name)))
    }
    shown = "; ".join(f"{name} ({why})" for name, why in left.items())
    if len(left) == len(names):
        raise DataError(f"{student.source}: nothing to compare with {teacher.source}; {shown}")
    figures: list[Figure] = []
    for name in names:
        if name in left:
            continue
        theirs, own = teacher.averages[name], student.averages[name]
        values = {
            "model": student.name,
            "teacher": teacher.name,
            "parameters": teacher.parameters,
            "source": f"{student.source}; teacher: {teacher.source}",
            "kind": own.kind,
            "benchmark": name,
            "teacher_score": 100 * theirs.score,
            "student_score": 100 * own.score,
            "documents": own.documents,
            "teacher_error": theirs.error and 100 * theirs.error,
            "student_error": own.error and 100 * own.error,
            "is_average": True,
            "note": f"{student.name} without {shown}" if shown and not figures else "",
        }
        figures.append(parse(values, Figure, student.source))
    return figures


def _why_not(teacher: _Average | None, student: _Average | None) -> str:
    """Why a benchmark is left out; empty if both were evaluated in one way."""
    if teacher is None or student is None:
        return f"not in the {'teacher' if teacher is None else 'student'}'s log"
    for name, of in teacher.settings.items():
        if (own := student.settings[name]) != of:
            return f"{name} {own}, the teacher's {of}"
    return "" if teacher.score > 0 else "the teacher scores 0"


def _model(given: str) -> _Model:
    name, equals, place = given.partition("=")
    if not equals or Path(given).exists():
        name, place = "", given
    path = Path(place)
    files = [path]
    if not path.is_file():
        files = [file for file in files_below(path) if re.fullmatch(r"results_.*\.json", file.name)]
    if not files:
        raise DataError(f"{path}: no results_*.json of lm-eval here{found_below(path)}")
    logs = [read_object(file) for file in files]
    labels = dict.fromkeys(str(log.value.get("model_name")) for log in logs)
    if len(labels) > 1 and not name:
        raise DataError(
            f"{path}: logs of {' and '.join(labels)}; pass one, or NAME={path} if they are one model"
        )
    averages: dict[str, _Average] = {}
    for log in logs:
        for benchmark, average in _averages(log):
            if benchmark in averages:
                raise DataError(
                    f"{log.place}: '{benchmark}' is in another log of {path}, too; pass one of them"
                )
            averages[benchmark] = average
    stated = logs[0].fields("config").value.get("model_num_parameters")
    return _Model(
        name or next(iter(labels)).rstrip("/").rsplit("/", 1)[-1],
        stated / 1e6 if type(stated) is int and stated > 0 else 0.0,
        f"lm-eval {logs[0].get('lm_eval_version', str)}, {', '.join(file.name for file in files)}",
        averages,
    )


def _averages(log: Fields) -> Iterator[tuple[str, _Average]]:
    """Scores of tasks and groups between 0 and 1; the members of a group with a score are part of it."""
    results = log.fields("results")
    subtasks = log.fields("group_subtasks", required=False)
    groups = {name: list(map(str, subtasks.get(name, list))) for name in subtasks.value}
    inside = {member for name in groups if _scores(log, name) for member in _below(groups, name)}
    for name in results.value:
        scores = {} if name in inside else _scores(log, name)
        if not scores:
            continue
        tasks = [each for each in _below(groups, name) if not groups.get(each)] or [name]
        outputs = {log.fields("configs").fields(task).get("output_type", str) for task in tasks}
        if len(outputs) > 1:
            raise DataError(f"{log.place}: '{name}' averages {' and '.join(sorted(outputs))}, two protocols")
        protocol: Kind = "generation" if outputs == {"generate_until"} else "loglikelihood"
        known = known_benchmark(name)
        # RULER's metrics are context lengths.
        contexts = [key for key in scores if key.partition(",")[0].isdigit()]
        main = known.metrics.get(protocol) if known else None
        first = next((key for key in scores if key.partition(",")[0] == main), next(iter(scores)))
        is_recall = bool(contexts) or (known is not None and known.category == "recall")
        sizes = [log.fields("n-samples").fields(task).get("effective", int) for task in tasks]
        documents = sum(sizes) // max(len(contexts), 1)
        for key in contexts or [first]:
            metric, _, chosen = key.partition(",")
            error = results.fields(name).value.get(f"{metric}_stderr,{chosen}")
            yield (
                f"{name} {metric}" if contexts else name,
                _Average(
                    kind="recall" if is_recall else protocol,
                    score=scores[key],
                    error=error if isinstance(error, float) and error > 0 else None,
                    documents=documents if len(set(sizes)) == 1 else None,
                    settings={
                        "metric": key,
                        "version": _each(log.fields("versions").value.get(task) for task in tasks),
                        "num_fewshot": _each(log.fields("n-shot").value.get(task) for task in tasks),
                        "documents": str(documents),
                    },
                ),
            )


def _each(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _scores(log: Fields, name: str) -> dict[str, float]:
    """Metric and filter → score of a task or group; those of which less is better are left out."""
    better = log.fields("higher_is_better", required=False).fields(name, required=False).value
    return {
        key: float(value)
        for key, value in log.fields("results").fields(name, required=False).value.items()
        if "," in key and "_stderr," not in key and better.get(key.partition(",")[0]) is not False
        # A context that was not evaluated is -1.
        if type(value) in (int, float) and 0 <= value <= 1
    }


def _below(groups: Mapping[str, Sequence[str]], name: str, depth: int = 8) -> list[str]:
    """Members of a group, at any depth."""
    members = groups.get(name, ()) if depth else ()
    return [each for member in members for each in (member, *_below(groups, member, depth - 1))]

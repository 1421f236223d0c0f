"""Tables of the selector study: scores with intervals, and paired differences from a reference selector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports.markdown import table
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.run import read_manifest, write_manifest
from evalsuite.reports.statistics.intervals import Interval, normal_quantile, wilson
from evalsuite.reports.statistics.paired import score_bounds
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.suite import load_suite, resolve

REFERENCE = "uniform"
Layers = tuple[int, ...]
Answers = dict[tuple[str, str, int | None, str], float]
"""(benchmark, protocol, context, document) → score in [0, 1]; lists and F1 give partial credit."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Score of one selector at one budget, on one group of benchmarks under one protocol."""

    selector: str
    budget: int
    layers: Layers
    group: str
    protocol: str
    documents: int
    score: Interval
    minus_uniform: Interval | None
    """Paired difference from the reference student of the same budget; None if the layers are equal."""


def label_of(layers: Layers) -> str:
    """Label of the student with these softmax layers."""
    return "layers-" + "-".join(map(str, layers)) if layers else "all-linear"


def name_selectors(run: Path, chosen: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Record in the run's plan which selectors selected the layers of each student."""
    names: dict[str, list[str]] = {}
    for (selector, _), value in chosen.items():
        names.setdefault(label_of(tuple(value["layers"])), []).append(selector)
    plan = read_manifest(run)
    checkpoints = tuple(
        replace(each, lineage={**each.lineage, "selection": {"selector": ", ".join(names[each.label])}})
        if each.label in names
        else each
        for each in plan.checkpoints
    )
    write_manifest(run, replace(plan, checkpoints=checkpoints))


def groups_of(suite: str) -> dict[str, list[Benchmark]]:
    """Group the benchmarks of a suite: `needles`, `recall` (others of that category) and `short questions`;
    each benchmark keeps only the protocols of the suite."""
    groups: dict[str, list[Benchmark]] = {}
    for entry, benchmark in resolve(load_suite(suite)):
        left_out: dict[str, Any] = {
            protocol: None for protocol in benchmark.protocols if protocol not in entry.protocols
        }
        restricted = benchmark.model_copy(update=left_out)
        other = "recall" if benchmark.category == "recall" else "short questions"
        groups.setdefault("needles" if "niah" in benchmark.name else other, []).append(restricted)
    return groups


def read_answers(run: Path, groups: dict[str, list[Benchmark]]) -> dict[str, Answers]:
    """Checkpoint label → scores of its responses."""
    found: dict[str, Answers] = {}
    for benchmark in (each for group in groups.values() for each in group):
        name = str(benchmark.name)
        for protocol in benchmark.protocols:
            spec: Any = getattr(benchmark, protocol)
            frame = read_run_scores(run, name, protocol, [spec.metric])
            columns = (frame["checkpoint"], frame["context"], frame["doc_id"], frame[f"value.{spec.metric}"])
            for label, context, document, value in zip(*columns, strict=True):
                found.setdefault(label, {})[name, protocol, context, document] = float(value)
    return found


def fully_evaluated(
    chosen: dict[tuple[str, int], dict[str, Any]], answers: dict[str, Answers]
) -> tuple[dict[tuple[str, int], dict[str, Any]], list[str]]:
    """Return the selections whose student is fully evaluated, and the names of the others."""
    most = max(map(len, answers.values()), default=0)
    done = {
        key: value
        for key, value in chosen.items()
        if len(answers.get(label_of(tuple(value["layers"])), ())) == most
    }
    return done, [f"{selector} at {budget}" for selector, budget in chosen if (selector, budget) not in done]


def compared(
    chosen: dict[tuple[str, int], dict[str, Any]],
    answers: dict[str, Answers],
    groups: dict[str, list[Benchmark]],
) -> list[Line]:
    """Compute scores with Wilson intervals, and paired differences from the reference with Tango intervals.

    Raises:
        DataError: the reference student of a budget is not fully evaluated.
    """
    lines = []
    for (selector, budget), value in chosen.items():
        if (REFERENCE, budget) not in chosen:
            raise DataError(
                f"the student of '{REFERENCE}' at {budget} softmax layers, the reference, "
                "is not fully evaluated yet"
            )
        layers = tuple(value["layers"])
        mine = answers[label_of(layers)]
        reference = tuple(chosen[REFERENCE, budget]["layers"])
        theirs = answers[label_of(reference)]
        for group, benchmarks in groups.items():
            names = {str(benchmark.name) for benchmark in benchmarks}
            for protocol in PROTOCOLS:
                keys = [key for key in mine if key[0] in names and key[1] == protocol]
                if not keys:
                    continue
                score = wilson(sum(mine[key] for key in keys), len(keys))
                assert score is not None
                lines.append(
                    Line(
                        selector=selector,
                        budget=budget,
                        layers=layers,
                        group=group,
                        protocol=protocol,
                        documents=len(keys),
                        score=score,
                        minus_uniform=None
                        if layers == reference
                        else paired_interval([mine[key] - theirs[key] for key in keys]),
                    )
                )
    return lines


def paired_interval(differences: Sequence[float]) -> Interval:
    """Tango's interval of the mean of differences in [−1, 1], as scaled counts (see `statistics.paired`)."""
    size = sum(map(abs, differences))
    scale = sum(d * d for d in differences) / size if size else 1.0
    wins = sum(d for d in differences if d > 0) / scale
    losses = -sum(d for d in differences if d < 0) / scale
    z = normal_quantile(0.975)
    low, high = scale * score_bounds(np.array([z, -z]), wins, losses, len(differences))
    point = sum(differences) / len(differences)
    return Interval(point, float(low), float(high), "Tango score")


def plain_scores(mine: Answers, groups: dict[str, list[Benchmark]]) -> dict[tuple[str, str], Interval]:
    """(group, protocol) → score of one student, with Wilson interval."""
    found: dict[tuple[str, str], Interval] = {}
    for group, benchmarks in groups.items():
        names = {str(benchmark.name) for benchmark in benchmarks}
        for protocol in PROTOCOLS:
            right = [value for key, value in mine.items() if key[0] in names and key[1] == protocol]
            score = wilson(sum(right), len(right))
            if score is not None:
                found[group, protocol] = score
    return found


def with_quality(
    value: dict[str, Any], lines: Sequence[Line], linear: dict[tuple[str, str], Interval]
) -> dict[str, Any]:
    """Add the scores of a selector's students at all budgets to its largest selection, for the figures."""
    points: list[tuple[Layers, str, str, Interval]] = [
        ((), group, protocol, score) for (group, protocol), score in linear.items()
    ]
    points += [
        (line.layers, line.group, line.protocol, line.score)
        for line in lines
        if line.selector == value["selector"]
    ]
    quality = [
        {
            "layers": list(layers),
            "what": f"{group}, {PROTOCOL_TITLES[protocol]}",
            "score": score.point,
            "low": score.low,
            "high": score.high,
        }
        for layers, group, protocol, score in points
    ]
    return {**value, "quality": quality}


COLUMNS = (
    *("selector", "budget", "layers", "group", "protocol", "documents", "score", "low", "high"),
    *("minus_uniform", "minus_uniform_low", "minus_uniform_high"),
)
BENCHMARK_COLUMNS = ("checkpoint", "benchmark", "protocol", "context", "documents", "score", "low", "high")
Scores = Mapping[tuple[str, str], Interval]
"""(group, protocol) → score."""


def csv_rows(lines: Sequence[Line], references: Mapping[str, Scores] | None = None) -> list[list[Any]]:
    """One row of `COLUMNS` per line, with scores and differences as fractions.

    Args:
        references: name → scores of the teacher and the all-linear student.
    """
    rows: list[list[Any]] = [
        [name, "", "", group, protocol, "", *ends(score), *ends(None)]
        for name, scores in (references or {}).items()
        for (group, protocol), score in scores.items()
    ]
    for line in lines:
        about = (line.selector, line.budget, " ".join(map(str, line.layers)), line.group, line.protocol)
        rows.append([*about, line.documents, *ends(line.score), *ends(line.minus_uniform)])
    return rows


def ends(interval: Interval | None) -> list[str]:
    """Point and bounds as text, or empty cells."""
    if interval is None:
        return ["", "", ""]
    return [f"{value:.4f}" for value in (interval.point, interval.low, interval.high)]


def by_benchmark(answers: Mapping[str, Answers]) -> list[list[Any]]:
    """Rows of `BENCHMARK_COLUMNS`: the score of every checkpoint per benchmark, protocol and context."""
    rows = []
    for label, given in answers.items():
        cells: dict[tuple[str, str, int | None], list[float]] = {}
        for (name, protocol, context, _), right in given.items():
            cells.setdefault((name, protocol, context), []).append(right)
        for (name, protocol, context), marks in cells.items():
            shown = context if context is not None and context > 0 else ""
            rows.append([label, name, protocol, shown, len(marks), *ends(wilson(sum(marks), len(marks)))])
    return rows


def as_markdown(
    lines: Sequence[Line],
    groups: dict[str, list[Benchmark]],
    references: Mapping[str, Scores] | None = None,
) -> str:
    """Format one table per budget, one row per set of layers: percent with 95 % intervals, and the difference
    from uniform in points. Selectors with the same layers share a student and a row.

    Args:
        lines: all selectors and budgets.
        groups: order of the columns.
        references: as for `csv_rows`, in a separate table.
    """
    present = {(line.group, line.protocol) for line in lines}
    cells = [(group, protocol) for group in groups for protocol in PROTOCOLS if (group, protocol) in present]
    headers = [f"{group}, {PROTOCOL_TITLES[protocol]}" for group, protocol in cells]
    text = []
    if references:
        text.append(
            table(
                ["", *headers],
                [
                    [name, *(_interval(scores[cell]) if cell in scores else "" for cell in cells)]
                    for name, scores in references.items()
                ],
            )
        )
    for budget in dict.fromkeys(line.budget for line in lines):
        mine = [line for line in lines if line.budget == budget]
        rows = []
        for layers in dict.fromkeys(line.layers for line in mine):
            same = [line for line in mine if line.layers == layers]
            names = ", ".join(dict.fromkeys(line.selector for line in same))
            found = {(line.group, line.protocol): _cell(line) for line in same}
            rows.append([", ".join(map(str, layers)), names, *(found[cell] for cell in cells)])
        text += [f"**K = {budget}**", table(["layers", "selected by", *headers], rows)]
    return "\n\n".join(text) + "\n"


def _cell(line: Line) -> str:
    beyond = line.minus_uniform
    text = _interval(line.score)
    if beyond is not None:
        points = beyond.scaled(100)
        text += f"; {points.point:+.1f} ({points.low:+.1f} to {points.high:+.1f})"
    return text


def _interval(score: Interval) -> str:
    scaled = score.scaled(100)
    return f"{scaled.point:.1f} ({scaled.low:.1f} to {scaled.high:.1f})"

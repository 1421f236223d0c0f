"""Which selector chooses best: every selector's layers, distilled alike and asked to recall.

    python -m evalsuite.evaluator.selection_study pocket --mixer gated_deltanet --budget 1 2 --out runs/study

selects with each selector at each budget on one shared trunk, distils every distinct set of layers by the
same recipe and seed, asks all students the suite, and writes `selectors.csv` and `selectors.md` with
confidence intervals and the paired difference from `uniform`. Killed, the same command goes on.
"""

import argparse
import csv
import io
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, write_json, write_text
from evalsuite.reports.reading import read_run_records
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.paired import score_interval
from evalsuite.reports.statistics.wilson import wilson
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.suite import load_suite

REFERENCE = "uniform"
Layers = tuple[int, ...]
Answers = dict[tuple[str, str, int | None, str], bool]
"""(benchmark, protocol, context, document) → whether it was right."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One selector at one budget, on one group of questions under one protocol."""

    selector: str
    budget: int
    layers: Layers
    group: str
    protocol: str
    documents: int
    score: Interval
    beyond_uniform: Interval | None
    """Paired difference from the reference's students of the same budget; None where the layers are equal."""


def study(
    recipe: str,
    out: Path,
    *,
    mixer: str,
    budgets: Sequence[int],
    selectors: Sequence[str],
    suite: str,
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
    limit: int | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> list[Line]:
    """Select, distil, ask and compare; every step resumes.

    Args:
        overrides: of the recipe, for the trunk and for every student alike.
        options: of the selectors.

    Raises:
        ConfigError: the reference is missing among the selectors, or a recipe, option or suite is wrong.
    """
    from evalsuite.distill import distill, load_recipe
    from evalsuite.distill.selection import load_options, select
    from evalsuite.evaluator import evaluate

    if REFERENCE not in selectors:
        raise ConfigError(f"--selectors must hold '{REFERENCE}', which the others are compared to")
    loaded = load_recipe(recipe, [*overrides, f"student.mixers=[{mixer}]"])
    settings = load_options(options)
    chosen: dict[tuple[str, int], dict[str, Any]] = {}
    began = time.monotonic()
    for budget in budgets:
        for name in selectors:
            chosen[name, budget] = select(
                loaded,
                name,
                out / "layers" / f"{name}-{budget}.json",
                budget=budget,
                options=settings,
                work=out / "work",
                device=device,
                quiet=quiet,
            )
            print(f"{name} {budget}: {chosen[name, budget]['layers']}", file=sys.stderr, flush=True)
    selected = time.monotonic() - began
    sets = sorted({tuple(value["layers"]) for value in chosen.values()}, key=lambda each: (len(each), each))
    students = {}
    for layers in [(), *sets]:
        label = label_of(layers)
        student = loaded.student.model_copy(update={"softmax_layers": list(layers)})
        (folder,) = distill(
            loaded.model_copy(update={"student": student}),
            out / "distilled" / label,
            device=device,
            quiet=quiet,
        )
        students[layers] = _linked(out / "students" / label, folder)
    distilled = time.monotonic() - began - selected
    run = out / "run"
    evaluate(
        suite,
        [str(path) for path in students.values()],
        run,
        teacher=loaded.teacher,
        limit=limit,
        device=device or "auto",
        quiet=quiet,
    )
    asked = time.monotonic() - began - selected - distilled
    write_json(out / "seconds.json", {"selecting": selected, "distilling": distilled, "asking": asked})
    groups = groups_of(suite)
    answers = read_answers(run, groups)
    lines = compared(chosen, answers, groups)
    largest = max(budgets)
    linear = plain_scores(answers[label_of(())], groups)
    write_json(
        run / "selection.json",
        [_with_quality(chosen[name, largest], lines, linear) for name in selectors],
    )
    write_text(out / "selectors.csv", as_csv(lines))
    write_text(out / "selectors.md", as_markdown(lines, groups))
    return lines


def label_of(layers: Layers) -> str:
    """Name of the student with these softmax layers."""
    return "layers-" + "-".join(map(str, layers)) if layers else "all-linear"


def _linked(link: Path, folder: Path) -> Path:
    """A name of its own for a student, by which the evaluator calls it."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(folder, link.parent))
    return link


def groups_of(suite: str) -> dict[str, list[Benchmark]]:
    """`needles` for benchmarks with contexts, `recall` for the suite's others."""
    groups: dict[str, list[Benchmark]] = {}
    for entry in load_suite(suite).benchmarks:
        benchmark = load_benchmark(entry.benchmark)
        groups.setdefault("needles" if benchmark.contexts else "recall", []).append(benchmark)
    return groups


def read_answers(run: Path, groups: dict[str, list[Benchmark]]) -> dict[str, Answers]:
    """Label of each checkpoint → its answers, right or wrong."""
    found: dict[str, Answers] = {}
    for benchmark in (each for group in groups.values() for each in group):
        name = str(benchmark.name)
        for protocol in benchmark.protocols:
            asked: Any = getattr(benchmark, protocol)
            frame = read_run_records(run, name, protocol, [asked.metric])
            columns = (frame["checkpoint"], frame["context"], frame["doc_id"], frame[f"value.{asked.metric}"])
            for label, context, document, value in zip(*columns, strict=True):
                found.setdefault(label, {})[name, protocol, context, document] = value == 1
    return found


def compared(
    chosen: dict[tuple[str, int], dict[str, Any]],
    answers: dict[str, Answers],
    groups: dict[str, list[Benchmark]],
) -> list[Line]:
    """Scores with Wilson's intervals, and differences from the reference with Tango's."""
    lines = []
    for (selector, budget), value in chosen.items():
        layers = tuple(value["layers"])
        mine = answers[label_of(layers)]
        reference = tuple(chosen[REFERENCE, budget]["layers"])
        theirs = answers[label_of(reference)]
        for group, benchmarks in groups.items():
            names = {str(benchmark.name) for benchmark in benchmarks}
            for protocol in ("loglikelihood", "generation"):
                keys = [key for key in mine if key[0] in names and key[1] == protocol]
                if not keys:
                    continue
                right = sum(mine[key] for key in keys)
                wins = sum(mine[key] and not theirs[key] for key in keys)
                losses = sum(theirs[key] and not mine[key] for key in keys)
                score = wilson(right, len(keys))
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
                        beyond_uniform=None
                        if layers == reference
                        else score_interval(wins, losses, len(keys)),
                    )
                )
    return lines


def plain_scores(mine: Answers, groups: dict[str, list[Benchmark]]) -> dict[tuple[str, str], Interval]:
    """(group, protocol) → score of one student, with Wilson's interval."""
    found = {}
    for group, benchmarks in groups.items():
        names = {str(benchmark.name) for benchmark in benchmarks}
        for protocol in ("loglikelihood", "generation"):
            right = [value for key, value in mine.items() if key[0] in names and key[1] == protocol]
            score = wilson(sum(right), len(right))
            if score is not None:
                found[group, protocol] = score
    return found


def _with_quality(
    value: dict[str, Any], lines: Sequence[Line], linear: dict[tuple[str, str], Interval]
) -> dict[str, Any]:
    """A selector's largest selection, with what its students of all budgets scored, for the figures."""
    words = {"loglikelihood": "ranked", "generation": "written"}
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
            "what": f"{group}, {words[protocol]}",
            "score": score.point,
            "low": score.low,
            "high": score.high,
        }
        for layers, group, protocol, score in points
    ]
    return {**value, "quality": quality}


COLUMNS = ("selector", "budget", "layers", "group", "protocol", "documents", "score", "low", "high")


def as_csv(lines: Sequence[Line]) -> str:
    """One row per line; scores and differences as fractions."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "minus_uniform", "minus_uniform_low", "minus_uniform_high"])
    for line in lines:
        score, beyond = line.score, line.beyond_uniform
        ends = (
            ["", "", ""] if beyond is None else [f"{v:.4f}" for v in (beyond.point, beyond.low, beyond.high)]
        )
        writer.writerow(
            [
                line.selector,
                line.budget,
                " ".join(map(str, line.layers)),
                line.group,
                line.protocol,
                line.documents,
                *(f"{v:.4f}" for v in (score.point, score.low, score.high)),
                *ends,
            ]
        )
    return text.getvalue()


def as_markdown(lines: Sequence[Line], groups: dict[str, list[Benchmark]]) -> str:
    """One table per budget, one row per set of layers: per cent with 95 % intervals, and the difference from
    uniform in points. Selectors that chose the same layers share the student and the row."""
    cells = [(group, protocol) for group in groups for protocol in ("loglikelihood", "generation")]
    words = {"loglikelihood": "ranked", "generation": "written"}
    text = []
    for budget in dict.fromkeys(line.budget for line in lines):
        mine = [line for line in lines if line.budget == budget]
        text += [f"**K = {budget}**", ""]
        text += ["| layers | chosen by | " + " | ".join(f"{g}, {words[p]}" for g, p in cells) + " |"]
        text += ["|---|---|" + "---|" * len(cells)]
        for layers in dict.fromkeys(line.layers for line in mine):
            same = [line for line in mine if line.layers == layers]
            names = ", ".join(dict.fromkeys(line.selector for line in same))
            shown = {(line.group, line.protocol): _cell(line) for line in same}
            row = " | ".join(shown.get(cell, "") for cell in cells)
            text += [f"| {', '.join(map(str, layers))} | {names} | {row} |"]
        text += [""]
    return "\n".join(text)


def _cell(line: Line) -> str:
    score, beyond = line.score.scaled(100), line.beyond_uniform
    text = f"{score.point:.1f} ({score.low:.1f} to {score.high:.1f})"
    if beyond is not None:
        points = beyond.scaled(100)
        text += f"; {points.point:+.1f} ({points.low:+.1f} to {points.high:+.1f})"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study and print its table."""
    from evalsuite.distill.selection import SELECTORS

    able = [name for name in SELECTORS if name != "fixed"]
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.evaluator.selection_study", description=__doc__
    )
    parser.add_argument("recipe")
    parser.add_argument("--mixer", required=True)
    parser.add_argument("--budget", type=int, nargs="+", required=True)
    parser.add_argument("--selectors", nargs="+", default=able)
    parser.add_argument("--suite", default="pocket-recall")
    parser.add_argument("--set", nargs="+", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--option", nargs="+", default=[], dest="options", metavar="KEY=VALUE")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true")
    arguments = vars(parser.parse_args(argv))
    study(arguments.pop("recipe"), arguments.pop("out"), budgets=arguments.pop("budget"), **arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())

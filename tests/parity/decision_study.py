"""The tables of the deciding study against a recomputation from raw responses, without evalsuite.

    python -m tests.parity.decision_study smollm2 --run BUILT_RUN --shards SHARD [SHARD …] \\
        --results reports/results/decision

BUILT_RUN holds documents and requests, a SHARD (.tar.xz) responses of one or more checkpoints. Chance (the
score of the best constant answer) and admission of completion tasks are taken from leads.csv, not recomputed.
With `--half heldout` the needles are those of the held-out half, and choices.csv is recomputed, too.

The table has the largest differences, in points except for p-values and power: first of what must be equal,
then of what differs by the noise of two bootstraps. "of its row" holds some columns of a CSV file to what its
others imply. Exit code: 0 no difference exceeds its limit, 1 one does, 2 a response is missing.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from evalsuite.foundation.parser import Parser
from tests.parity.decision_cells import DRAWS, PROTOCOL, Cell, read_cells, read_shards

EQUAL, EQUAL_P, NOISE = 1e-6, 1e-9, 0.5
NOISY = ("document_error", "low", "high")
CHOICES = ["measure"]
COMMON = set.intersection(*(set(teacher["students"]) for teacher in PROTOCOL["teachers"].values()))
KEYS = {
    "shares": ["student", "seed", "of", "cell", "way"],
    "leads": ["of", "cell", "way"],
    "contrasts": ["family", "contrast"],
    "unfound": ["student"],
    "variants": ["contrast", "students", "family", "change"],
    "orders": ["students", "of", "way"],
}


def effect(cells: Sequence[Cell], groups: Sequence[list[int]], ways: tuple[str, str]) -> dict[str, Any]:
    """The contrast of checkpoints that are grouped by student; empty without cells or repeated runs."""
    if not cells:
        return {}
    points, drawn = (
        np.mean([cell.shares(ways[1], many) - cell.shares(ways[0], many) for cell in cells], axis=0)
        for many in (False, True)
    )
    return interval(cells, points, drawn, groups, [1 / len(groups)] * len(groups)) if groups else {}


def interval(
    cells: Sequence[Cell],
    points: np.ndarray,
    drawn: np.ndarray,
    groups: Sequence[list[int]],
    weights: Sequence[float],
) -> dict[str, Any]:
    """A weighted sum of the groups' means over runs and documents; empty without repeated runs."""
    df = sum(len(group) - 1 for group in groups)
    if not df:
        return {}
    estimate = np.dot(weights, [points[group].mean() for group in groups])
    run_variance = sum(((points[group] - points[group].mean()) ** 2).sum() for group in groups) / df
    document_error = np.dot(weights, [drawn[group].mean(0) for group in groups]).std(ddof=1)
    sizes = [len(group) for group in groups]
    variance = run_variance * sum(w**2 / n for w, n in zip(weights, sizes, strict=True)) + document_error**2
    half = stats.t.ppf(0.975, df) * variance**0.5
    found = {
        "estimate": estimate,
        "low": estimate - half,
        "high": estimate + half,
        "run_sd": run_variance**0.5,
    }
    names = "; ".join(cell.name for cell in cells)
    return found | {"document_error": document_error, "df": df, "runs": sum(map(len, groups)), "cells": names}


def recompute(
    cells: Sequence[Cell], runs: Sequence[tuple[str, int]], students: Mapping[str, str], refused: set[str]
) -> dict[str, pd.DataFrame]:
    """The tables; `runs` are the checkpoints after the teacher, `refused` completion tasks."""
    found: dict[str, dict[Any, dict[str, Any]]] = {table: {} for table in KEYS}
    counted: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        counts = cell.name not in refused if cell.of == "completion_tasks" else cell.counts()
        counted[cell.of] += [cell] * counts
        for way, scores in cell.scores.items():
            key, (lead, low) = (cell.of, cell.name, way), cell.lead(way)
            sizes = {"documents": scores.shape[1], "chance": cell.chance[way]}
            found["leads"][key] = sizes | {"lead": lead, "low": low, "admitted": counts}
            for run, own, share in zip(runs, scores[1:], cell.shares(way)[1:, 0], strict=True):
                found["shares"][*run, *key] = {"score": own.mean(), "share": share, "admitted": counts}
    groups = {student: [n for n, run in enumerate(runs, 1) if run[0] == student] for student, _ in runs}
    for student, group in groups.items():
        kept = {
            way: 100 * np.concatenate([cell.scores[way][group].ravel() for cell in counted["needles"]])
            for way in ("generated", "inside", "outside")
        }
        left = kept["generated"] == 0
        rest = {f"{way}_unfound": kept[way][left].mean() for way in ("inside", "outside")}
        found["unfound"][student] = {way: scores.mean() for way, scores in kept.items()} | rest
    for contrast, how in PROTOCOL["contrasts"].items():
        own, ways = counted[how["of"]], how["ways"]
        change, others = "", []
        if contrast == "protocol":
            change = "no correction for guessing"
            others = [replace(cell, chance=cell.chance | {"inside": 0.0}) for cell in own]
        if contrast == "answers":
            change = "without lambada_completion"
            others = [cell for cell in own if cell.name != "lambada_completion"]
        for family in dict.fromkeys(students.values()):
            names = [name for name in students if students[name] == family and name in groups]
            chosen = [groups[name] for name in names]
            every = [number for group in chosen for number in group]
            inner = [c for c in own if every and any(5 <= c.shares(way)[every].mean() <= 95 for way in ways)]
            within = {f"between_{key}": value for key, value in effect(inner, chosen, ways).items()}
            found["contrasts"][family, contrast] = effect(own, chosen, ways) | within
            if change and chosen:
                found["variants"][contrast, " ".join(names), family, change] = _without_cells(
                    effect(others, chosen, ways)
                )
        for student, group in groups.items():
            found["variants"][contrast, student, "", ""] = _without_cells(effect(own, [group], ways))
    pairs = list(combinations([name for name in students if name in COMMON & set(groups)], 2))
    for of, own in counted.items():
        for way in own[0].scores:
            points, drawn = (np.mean([c.shares(way, many) for c in own], axis=0) for many in (False, True))
            for pair in pairs:
                row = interval(own, points, drawn, [groups[student] for student in pair], (1, -1))
                found["orders"][" ".join(pair), of, way] = _without_cells(row)
    return {
        table: pd.DataFrame.from_dict(rows, orient="index").rename_axis(KEYS[table])
        for table, rows in found.items()
    }


def choose(
    explored: Sequence[Cell], opened: Sequence[Cell], runs: Mapping[int, tuple[str, int]], kl: Sequence[float]
) -> pd.DataFrame:
    """Whom each measure chooses, and how many held-out needles the best one finds more, in points.

    Args:
        explored: counted cells with the needles of the exploratory half.
        opened: counted needles of the held-out half.
        runs: place of a trained checkpoint in a cell → student and seed.
        kl: of the same, on held-out text.
    """

    places, names = list(runs), list(runs.values())

    def mean(of: str, way: str) -> np.ndarray:
        return np.mean([c.scores[way][places].mean(1) for c in explored if c.of == of], axis=0)

    measures = {f"short tasks, {way}": mean("short_tasks", way) for way in ("plain", "padded")}
    measures["KL on held-out text"] = -np.array(kl)
    measures |= {f"needles, {way}": mean("needles", way) for way in PROTOCOL["ways"]}
    found = 100 * np.concatenate([cell.scores["generated"][places] for cell in opened], axis=1)
    rates = found.mean(1)
    groups = [[n for n, run in enumerate(names) if run[0] == name] for name in dict(names)]
    random, draws = np.random.default_rng(1), []
    for _ in range(DRAWS):
        drawn = np.concatenate([random.choice(group, len(group)) for group in groups])
        weights = random.multinomial(found.shape[1], [1 / found.shape[1]] * found.shape[1])
        own = found[drawn] @ weights / found.shape[1]
        draws.append([own.max() - own[values[drawn].argmax()] for values in measures.values()])
    rows = {}
    for (name, values), regrets in zip(measures.items(), np.array(draws).T, strict=True):
        (student, seed), low_high = names[values.argmax()], np.percentile(regrets, [2.5, 97.5])
        rows[name] = {"student": student, "seed": seed, "regret": rates.max() - rates[values.argmax()]}
        rows[name] |= dict(zip(("low", "high"), low_high, strict=True))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(CHOICES)


def _without_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("runs", "cells")}


def differences(table: str, mine: pd.DataFrame, theirs: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Noisy?, table, column, rows, largest difference, limit, and where it is, of every column of `mine`.

    A value that only one of them has differs by infinity, a text by 1.
    """
    mine, theirs = mine.align(theirs.reindex(columns=mine.columns))
    for column in map(str, mine):
        pairs = pd.concat([mine[column], theirs[column]], axis=1, keys=["mine", "theirs"]).dropna(how="all")
        if column.endswith("cells") or column == "student":
            far = (pairs["mine"] != pairs["theirs"]) * 1.0
        else:
            scale = 100 if column in ("score", "chance") else 1
            far = scale * (pairs["mine"].astype(float) - pairs["theirs"].astype(float)).abs().fillna(np.inf)
        name = column.removeprefix("between_")
        noisy = table in ("contrasts", "variants", "choices", "orders") and name in NOISY
        limit = NOISE if noisy else EQUAL_P if name in ("p", "p_adjusted", "power") else EQUAL
        yield noisy, table, column, len(far), far.max(), limit, far.idxmax() if (far > 0).any() else ""


def follows(frame: pd.DataFrame) -> pd.DataFrame:
    """What other columns of a CSV file imply of some of its columns."""
    found, power = frame[[]].copy(), PROTOCOL["power"]
    for start in ("", "between_") if "between_p" in frame else ("",):
        estimate, low, high, df = (frame[start + name] for name in ("estimate", "low", "high", "df"))
        found[f"{start}estimate"] = (low + high) / 2
        error = (high - low) / 2 / stats.t.ppf(0.975, df)
        found[f"{start}p"] = 2 * stats.t.sf(abs(estimate) / error, df)
    if "p_adjusted" in frame:
        for _, p in frame.p.groupby(level="family"):
            adjusted = (p.sort_values() * (power["tests"] - np.arange(len(p)))).cummax().clip(upper=1)
            found.loc[p.index, "p_adjusted"] = adjusted
        # The detectable contrast is the one that the first test of Holm's finds with the protocol's power.
        critical = stats.t.ppf(1 - power["alpha"] / power["tests"] / 2, frame.df)
        students = frame.runs - frame.df
        error = (frame.run_sd**2 / (students * (frame.runs // students)) + frame.document_error**2) ** 0.5
        found["power"] = stats.nct.sf(critical, frame.df, frame.detectable / error)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("teacher", choices=PROTOCOL["teachers"])
    parser.add_argument("--run", type=Path, required=True, help="folder with documents and requests")
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help=".tar.xz files of responses")
    parser.add_argument("--results", type=Path, required=True, help="folder with the CSV files")
    parser.add_argument("--half", choices=PROTOCOL["needles"]["halves"], default="exploratory")
    options = parser.parse_args(arguments)
    theirs: dict[str, pd.DataFrame] = {}
    implied: dict[str, pd.DataFrame] = {}
    for table, keys in KEYS.items():
        frame = pd.read_csv(options.results / f"{table}.csv")
        frame[keys] = frame[keys].fillna("")
        if table == "leads":
            frame["admitted"] = frame["why"].isna()
        if "detectable" in frame:
            frame["power"] = (1 - PROTOCOL["power"]["beta"]) * frame["detectable"].notna().replace(
                False, np.nan
            )
        frame = frame.set_index(["teacher", *keys])
        theirs[table] = frame.loc[options.teacher]
        if "p" in frame:
            theirs[f"{table}, of its row"] = theirs[table]
            implied[f"{table}, of its row"] = follows(frame).loc[options.teacher]
    leads = theirs["leads"].loc["completion_tasks"]
    responses, kl = read_shards(options.shards)
    teacher = PROTOCOL["teachers"][options.teacher]
    planned = [f"{student}-seed{seed}" for student in teacher["students"] for seed in PROTOCOL["seeds"]]
    labels = ["teacher", *(label for label in planned if label in responses)]
    labels += sorted(responses.keys() - set(labels))

    def cells_of(half: str) -> list[Cell]:
        given = [responses[label] for label in labels]
        return list(read_cells(options.run, given, dict(leads["chance"]), half))

    try:
        cells = cells_of(options.half)
    except KeyError as error:
        parser.error(f"{error}: the shards lack the teacher or a response to a request of {options.run}")
    runs = [(name, int(seed or 0)) for name, _, seed in (label.partition("-seed") for label in labels[1:])]
    refused = set(leads.index[~leads["admitted"]].get_level_values("cell"))
    mine = recompute(cells, runs, teacher["students"], refused) | implied
    if options.half == "heldout":
        opened = [cell for cell in cells if cell.of == "needles" and cell.counts()]
        counted = {cell.name for cell in opened}
        others = [cell for cell in cells if cell.of == "short_tasks" and cell.counts()]
        explored = others + [cell for cell in cells_of("exploratory") if cell.name in counted]
        trained = {place: run for place, run in enumerate(runs, 1) if labels[place] in kl}
        mine["choices"] = choose(explored, opened, trained, [kl[labels[place]] for place in trained])
        frame = pd.read_csv(options.results / "choices.csv").set_index(["teacher", *CHOICES])
        theirs["choices"] = frame.loc[options.teacher]
    rows = [row for table in mine for row in differences(table, mine[table], theirs[table])]
    columns = ["noisy", "table", "column", "rows", "largest", "limit", "where"]
    report = pd.DataFrame(rows, columns=columns).sort_values("noisy", kind="stable")
    print(report.to_string(index=False))
    return int((report["largest"] > report["limit"]).any())


if __name__ == "__main__":
    sys.exit(main())

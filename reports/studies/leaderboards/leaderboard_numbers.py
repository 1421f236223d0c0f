"""The numbers of both leaderboards that README and their pages quote, from the stored samples alone.

    python -m evalsuite.reports.studies.leaderboards.leaderboard_numbers [--draws 2000]

Reads the score of every document with pandas and computes macro averages over the informative benchmarks,
each request once: recovery with its bootstrap interval over documents, share of the teacher's lead over
chance, agreement, retained answers and their ceiling between runs of a recipe, needles, and Spearman's ρ of
recovery and needles. No code of the reports is used. On the first leaderboard BEAR counts in one number of a
line only: its relations on countries are in the training data.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from evalsuite.foundation import read_json
from evalsuite.foundation.parser import Parser

RESULTS = Path(__file__).parents[2] / "results"
FIRST = RESULTS / "smollm2-135m-instruct"
SECOND = RESULTS / "smollm2-135m-instruct-2" / "8m-90m"
COUNTED = ("lambada_openai", "arc_easy", "piqa", "hellaswag")
"""Informative under log-likelihood, each request once, none with relations from the training data."""

Scores = Mapping[str, pd.DataFrame]
"""Benchmark → scores [documents, checkpoints]."""


def scores_of(run: Path, benchmarks: Sequence[str] = COUNTED) -> Scores:
    """Scores under log-likelihood in the metric that the reports show."""
    metrics = metrics_of(run)
    return {name: _by_checkpoint(run, name, f"value.{metrics[name]}") for name in benchmarks}


def _rows(run: Path, name: str) -> pd.DataFrame:
    """The score rows of all files of a name, such as ``piqa.loglikelihood``."""
    return pd.concat([pd.read_parquet(path) for path in sorted(run.glob(f"scores/{name}*.parquet"))])


def _by_checkpoint(run: Path, name: str, column: str) -> pd.DataFrame:
    rows = _rows(run, f"{name}.loglikelihood")
    return rows.pivot(index="doc_id", columns="checkpoint", values=column)


def metrics_of(run: Path) -> dict[str, str]:
    """Benchmark → the metric that the reports show under log-likelihood."""
    return {
        each["name"]: each["protocols"]["loglikelihood"]["metric"]
        for each in read_json(run / "run.json")["benchmarks"]
        if "loglikelihood" in each["protocols"]
    }


def needles_of(run: Path) -> pd.DataFrame:
    """Share of S-NIAH needles found in generation. [checkpoints, contexts]"""
    rows = _rows(run, "niah_single_*.generation")
    value = next(name for name in ("accuracy", "value.accuracy", "acc", "value.acc") if name in rows)
    return rows.pivot_table(index="checkpoint", columns="context", values=value, aggfunc="mean")


def macro(scores: Scores) -> pd.Series:
    """Mean score of every checkpoint over the benchmarks."""
    return pd.concat([frame.mean() for frame in scores.values()], axis=1).mean(axis=1)


def interval(scores: Scores, student: str, teacher: str, draws: int) -> tuple[float, float]:
    """95 % percentiles of the recovery over documents, resampled within each benchmark."""
    rng = np.random.default_rng(0)
    sums = np.zeros((draws, 2))
    for frame in scores.values():
        values = frame[[student, teacher]].to_numpy()
        for draw in range(draws):
            sums[draw] += values[rng.integers(0, len(values), len(values))].mean(axis=0)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return float(low), float(high)


def retained(scores: Scores, student: str, reference: str) -> float:
    """Share of the right answers of `reference` that `student` has right, mean over the benchmarks."""
    return float(np.mean([frame.loc[frame[reference] == 1, student].mean() for frame in scores.values()]))


def choices_of(run: Path, benchmarks: Sequence[str] = COUNTED) -> Scores:
    """The most likely choices; benchmarks with a single one are left out."""
    found = {
        name: _by_checkpoint(run, name, "choice.acc")
        for name in benchmarks
        if "choice.acc" in _rows(run, f"{name}.loglikelihood")
    }
    return {name: choices for name, choices in found.items() if (choices > 0).any(axis=None)}


def agreement(choices: Scores, student: str, reference: str) -> float:
    """Share of documents with the same choice, mean over the benchmarks; NaN where choices are not known."""
    pairs = (frame[[student, reference]] for frame in choices.values())
    same = [pair[student].eq(pair[reference]).where(pair.notna().all(axis=1)) for pair in pairs]
    return float(np.mean([each.astype(float).mean(skipna=False) for each in same]))


def chance_of(run: Path, benchmarks: Sequence[str] = COUNTED) -> float:
    """Mean chance level of the benchmarks."""
    rows = (_rows(run, f"{name}.loglikelihood").drop_duplicates("doc_id") for name in benchmarks)
    return float(np.mean([each["chance"].mean() for each in rows]))


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def describe(page: Path, draws: int, extra: tuple[str, ...] = ()) -> None:
    """Print one line per student, then ceilings and correlations."""
    run = page / "samples"
    scores, needles, chance = scores_of(run), needles_of(run), chance_of(run)
    choices, means = choices_of(run), macro(scores)
    (teacher,) = (name for name in means.index if "Q4_1" in name)
    more = macro({**scores, **scores_of(run, extra)}) if extra else None
    documents = sum(len(frame) for frame in scores.values())
    print(f"{page.relative_to(RESULTS)}: {documents:,} documents of {', '.join(scores)}")
    for student in means.drop(teacher).sort_values(ascending=False).index:
        recovery = means[student] / means[teacher]
        lead = (means[student] - chance) / (means[teacher] - chance)
        low, high = interval(scores, student, teacher, draws) if draws else (np.nan, np.nan)
        each = [_percent(frame[student].mean() / frame[teacher].mean()) for frame in scores.values()]
        parts = [f"recovery {_percent(recovery)} ({_percent(low)} to {_percent(high)})"]
        if more is not None:
            parts.append(f"with {' '.join(extra)} {_percent(more[student] / more[teacher])}")
        parts += [
            f"share of the lead {_percent(lead)}",
            f"retained {_percent(retained(scores, student, teacher))}",
            f"agreement {_percent(agreement(choices, student, teacher))}",
            f"by benchmark {' '.join(each)}",
            f"needles {' '.join(f'{found:.3f}' for found in needles.loc[student])}",
        ]
        print(f"  {student}: {', '.join(parts)}")
    for student in means.index:
        for other in means.index:
            if student < other and re.sub(r"-seed\d+$", "", student) == re.sub(r"-seed\d+$", "", other):
                both = (_percent(retained(scores, a, b)) for a, b in ((student, other), (other, student)))
                print(f"  ceiling of retained, {student} and {other}: {' and '.join(both)}")
    students = means.drop(teacher).index
    for context in needles.columns:
        rho = spearmanr(means[students], needles.loc[students, context]).statistic
        print(f"  ρ of recovery and needles at {context}: {rho:.2f} over {len(students)} students")


def main() -> None:
    """Describe both leaderboards."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="of the bootstrap; 0: no intervals")
    draws = parser.parse_args().draws
    describe(FIRST, draws, ("bear",))
    describe(SECOND, draws)


if __name__ == "__main__":
    main()

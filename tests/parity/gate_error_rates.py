"""Error rates of the gate in simulations with a known truth, from its default policy to the outcome.

    python -m tests.parity.gate_error_rates --out reports/results/statistics

Every setting draws pairs of a teacher and the training runs of a recipe, and gates them with the policy of
`--min-recovery 0.9`. On the threshold, at most 2.5 % may pass and 2.5 % fail, as a statement on the recipe; a
student that guesses may never pass. One run writes gate.csv and takes ten minutes on one core. Exit
code: 0 if every row holds, 1 if not, 64 or more if the study could not be run.
"""

import csv
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import progress, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.foundation.strict import parse
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.gate.policy import Policy
from evalsuite.reports.gate.run import apply_policy
from evalsuite.reports.gate.verdict import Verdict
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

PAIRS = 200
SEED = 20_261_125
THRESHOLD = 0.9
RATE = 0.025
"""Passes, and failures, of a recipe on the threshold."""
NORMAL = NormalDist()
CORRELATION = 0.6
"""Of the latents of two checkpoints on one document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A teacher, a recipe and what the gate knows of the spread between its training runs."""

    name: str
    documents: int = 1200
    """Of each benchmark."""
    teacher: tuple[float, ...] = (0.8, 0.6, 0.7)
    """True score on each benchmark."""
    chance: tuple[float, ...] = (0.5, 0.25, 0.25)
    recovery: float | None = THRESHOLD
    """True recovery of the recipe; None: its students guess."""
    runs: int = 1
    spread: float = 0.0
    """Standard deviation of the score between training runs, in points."""
    stated: float | None = None
    """`run_spread` of the policy."""
    threshold: float = THRESHOLD
    protocols: tuple[str, ...] = ("loglikelihood",)


_REAL: dict[str, Any] = {"teacher": (0.511, 0.464, 0.644), "chance": (0.5, 0.25, 0.5), "recovery": None}
"""WinoGrande, ARC-Easy and PIQA of SmolLM2-135M."""
ON_THRESHOLD = (
    Setting(name="one run, 3 × 300", documents=300),
    Setting(name="one run, 3 × 1,200"),
    Setting(name="one run, spread 1.2 stated", spread=1.2, stated=1.2),
    Setting(name="one run, spread 0.8 stated", spread=0.8, stated=0.8),
    *(Setting(name=f"{n} runs, spread 1.2", spread=1.2, runs=n) for n in (2, 3, 5)),
    Setting(name="3 runs, spread 1.2 stated", spread=1.2, stated=1.2, runs=3),
)
GUESSING = (
    Setting(
        name="guesses, teacher barely above chance",
        teacher=(0.515, 0.27, 0.515),
        chance=(0.5, 0.25, 0.5),
        recovery=None,
    ),
    Setting(name="guesses, WinoGrande, ARC-Easy, PIQA", **_REAL),
    Setting(name="guesses, the same, threshold 0.75", threshold=0.75, **_REAL),
    Setting(name="guesses, the same, threshold 0.5", threshold=0.5, **_REAL),
    Setting(name="guesses, the same, both protocols", protocols=("loglikelihood", "generation"), **_REAL),
    Setting(name="guesses, teacher 0.6 of 0.5", teacher=(0.6,), chance=(0.5,), recovery=None, threshold=0.8),
)


def measured(setting: Setting, folder: Path) -> ResultTensor:
    """The results of a synthetic run with the checkpoints and benchmarks of a setting."""
    lineage = [{"recipe": {"name": "r"}, "seed": seed, "mixers": ["gla"]} for seed in range(setting.runs)]
    run = make_run(
        folder / "run",
        [
            SyntheticBenchmark(
                f"b{i}", f"B{i}", "knowledge", setting.documents, chance, protocols=setting.protocols
            )
            for i, chance in enumerate(setting.chance)
        ],
        [
            SyntheticCheckpoint("teacher", lambda *_: 0.8, "teacher"),
            *(SyntheticCheckpoint(f"s{i}", lambda *_: 0.8, lineage=each) for i, each in enumerate(lineage)),
        ],
    )
    return load_result_tensor([run])


def verdicts(setting: Setting, tensor: ResultTensor, pairs: int) -> Iterator[Verdict]:
    """The gate's verdict on each of `pairs` draws of teacher and students."""
    rng = np.random.default_rng([SEED, *setting.name.encode()])
    policy = parse(
        {"rules": [{"metric": "recovery", "min": setting.threshold}], "run_spread": setting.stated},
        Policy,
        "policy",
    )
    for number in range(pairs):
        shifts = setting.spread / 100 * rng.standard_normal(setting.runs)
        cells = tuple(_drawn(cell, setting, shifts, number, rng) for cell in tensor.cells)
        yield apply_policy(replace(tensor, cells=cells), policy)


def _drawn(cell: Cell, setting: Setting, shifts: np.ndarray, number: int, rng: np.random.Generator) -> Cell:
    """The cell with other documents, and scores on them."""
    which = int(cell.benchmark.name[1:])
    teacher, chance = setting.teacher[which], setting.chance[which]
    size = len(cell.documents)
    if setting.recovery is None:
        guesses = rng.random((setting.runs, size)) < chance
        right = np.vstack([rng.random(size) < teacher, guesses])
    else:
        truths = np.clip([teacher, *(setting.recovery * teacher + shifts)], 0.001, 0.999)
        hard = sqrt(CORRELATION) * rng.standard_normal(size)
        latent = hard + sqrt(1 - CORRELATION) * rng.standard_normal((1 + setting.runs, size))
        right = latent < np.array([NORMAL.inv_cdf(float(truth)) for truth in truths])[:, None]
    documents = np.array([f"{number}-{name}" for name in cell.documents])
    return replace(cell, documents=documents, values=right[:, None, :].astype(float))


def outcomes(setting: Setting, pairs: int = PAIRS) -> Counter[int]:
    """Exit code → number of pairs."""
    with tempfile.TemporaryDirectory() as folder:
        tensor = measured(setting, Path(folder))
    return Counter(verdict.exit_code for verdict in verdicts(setting, tensor, pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one setting, as shares of the pairs."""

    setting: str
    pairs: int
    passed: float
    failed: float
    inconclusive: float
    not_measured: float
    required: str
    holds: bool


def simulate(setting: Setting, pairs: int = PAIRS) -> Row:
    """Error rates in one setting."""
    found = outcomes(setting, pairs)
    if setting.recovery is None:
        required, holds = "no pass", found[0] == 0
    else:
        required = f"at most 2.5 % pass and 2.5 % fail; by chance up to {most(pairs)} pairs"
        holds = max(found[0], found[1]) <= most(pairs)
    passed, failed, inconclusive, not_measured = (found[code] / pairs for code in range(4))
    return Row(
        setting=setting.name,
        pairs=pairs,
        passed=passed,
        failed=failed,
        inconclusive=inconclusive,
        not_measured=not_measured,
        required=required,
        holds=holds,
    )


def most(pairs: int) -> int:
    """The largest number of `pairs` that a rate of 2.5 % exceeds with a probability of at most 5 %."""
    from scipy.special import bdtr

    return next(count for count in range(pairs + 1) if bdtr(count, pairs, RATE) >= 0.95)


def table(rows: Sequence[Row]) -> str:
    """Format rows as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(asdict(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return buffer.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate every setting and write gate.csv; 0 if every row holds, else 1."""
    parser = Parser(prog="python -m tests.parity.gate_error_rates", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for gate.csv")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="per setting (default: %(default)s)")
    options = parser.parse_args(arguments)
    rows = []
    for setting in progress([*ON_THRESHOLD, *GUESSING], what="settings"):
        rows.append(simulate(setting, options.pairs))
        write_text(options.out / "gate.csv", table(rows))
    print(table(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(guarded("gate_error_rates", main, resumable=False))

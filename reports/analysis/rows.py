"""The rows of a report: plain values, ready for JSON. Fractions unless stated otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.statistics.intervals import Interval

ALPHA = 0.05
"""Family-wise error rate of everything that is called proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One checkpoint on one benchmark under one protocol at one context."""

    checkpoint: int
    benchmark: str
    protocol: str
    context: int | None
    documents: int
    seeds: int
    score: Interval
    """Wilson's interval for right and wrong answers, else a bootstrap in [0, 1]; the log-perplexity for
    perplexities."""
    seed_deviation: float | None = None
    """Standard deviation between sampling seeds, beyond what sampling documents explains."""
    drop: Interval | None = None
    """Teacher − student on the same documents; for a perplexity, student − teacher in nats."""
    recovery: Estimate = field(default_factory=lambda: Estimate(None, "no teacher"))
    chance_normalized_recovery: Estimate = field(default_factory=lambda: Estimate(None, "no teacher"))
    wins: int | None = None
    """Documents on which the student scores higher than the teacher."""
    losses: int | None = None
    mcnemar: float | None = None
    """Mid-p-value; None if scores are not binary, or documents form clusters."""
    mde: float | None = None
    """Minimum detectable effect: the smallest true drop that is detected with 80 % power."""
    outcomes: dict[str, int]
    """Responses per outcome, over documents and seeds."""
    out_of_distribution: int = 0
    """Documents with a text longer than the positions that the checkpoint's config states."""
    closed_by_force: int = 0
    """Documents with a response whose thought was closed by force, as it exceeded its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRow:
    """The drop of one student on one benchmark, averaged over its contexts: a cell of the recovery table."""

    checkpoint: int
    benchmark: str
    protocol: str
    drop: Interval
    """Teacher − student; for a perplexity, student − teacher in nats."""
    p: float
    p_holm: float
    """With Holm's correction over all students and benchmarks of the protocol."""

    @property
    def kind(self) -> str:
        """`loss` or `gain` if proven after Holm's correction, else `tie`."""
        return "tie" if self.p_holm > ALPHA else "loss" if self.drop.point > 0 else "gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageRow:
    """One checkpoint averaged over a scope."""

    checkpoint: int
    scope: str
    protocol: str
    benchmarks: tuple[str, ...]
    missing: tuple[str, ...]
    """Benchmarks of the scope without scores of this checkpoint; if any, it has no rank."""
    counts_with: Mapping[str, str] = field(default_factory=dict)
    """Benchmark of the scope that `benchmarks` lacks, since its requests are another's → that one."""
    documents: int
    score: Interval
    drop: Interval | None
    recovery: Estimate
    chance_normalized_recovery: Estimate
    capped_recovery: Estimate
    """Recovery in which no benchmark counts above its teacher."""
    win_or_tie_rate: float | None
    runs: tuple[int, ...] = ()
    """Training runs of this checkpoint's recipe with the same benchmarks, itself included."""
    recipe_recovery: Estimate = field(default_factory=lambda: Estimate(None, "no teacher"))
    """Mean recovery of `runs`; its interval contains the spread between runs where any recipe has several,
    else its method is `one run, documents only`."""
    rank: int | None = None
    """By recovery among students of the same teacher; equal recoveries share a rank."""
    rank_low: int | None = None
    """Best rank that is not excluded: 1 + the number of students proven better over documents and runs."""
    rank_high: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """Both protocols on the same documents, for one student and one benchmark (or all benchmarks)."""

    checkpoint: int
    benchmark: str
    """A benchmark name, or `all` for the macro average."""
    context: int | None
    documents: int
    loglikelihood: dict[str, float]
    """Scores under log-likelihood: teacher, student."""
    generation: dict[str, float]
    """Scores under generation: teacher, student."""
    drop_loglikelihood: Interval
    drop_generation: Interval
    gap: Interval
    p: float
    """Two-sided p-value of the gap."""
    p_holm: float
    """With Holm's correction over all rows of benchmarks, or over all rows of averages."""
    right: dict[str, list[float]]
    """teacher, student → documents correct under both, under log-likelihood only, under generation only,
    under neither."""
    outcomes: dict[str, dict[str, float]]
    """teacher, student → share of generated responses per outcome."""
    explained: dict[str, float | None]
    """Outcome → change of the gap if documents with that outcome are removed for both; None: none left."""
    chance: float | None = None
    """Score of guessing among the choices; None if unknown."""

    @property
    def kind(self) -> str:
        """`loss` or `gain` under generation if proven after Holm's correction, else `tie`."""
        return "tie" if self.p_holm > ALPHA else "loss" if self.gap.point > 0 else "gain"

    @property
    def teacher_below_chance(self) -> bool:
        """Whether the teacher's generation score is below chance, so that little can be lost."""
        return self.chance is not None and self.generation["teacher"] < self.chance


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Two checkpoints under one protocol, averaged over their common benchmarks and documents."""

    first: int
    second: int
    protocol: str
    documents: int
    difference: Interval
    """First − second; between recipes it contains the spread between training runs, if that is known."""
    p: float
    p_holm: float
    """With Holm's correction over all pairs of the protocol; 1 for runs of one recipe."""
    wins: int
    losses: int
    mde: float | None
    are_replicates: bool
    """Whether both are training runs of one recipe, which are never proven different."""

    @property
    def proven(self) -> bool:
        """Whether the two differ at 5 %, after Holm's correction."""
        return self.p_holm <= ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Inversion:
    """Two checkpoints in opposite order under the two protocols."""

    loglikelihood_above: int
    generation_above: int
    difference_loglikelihood: float
    difference_generation: float
    proven: bool
    """Whether both differences are proven, after Holm's correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of the two protocols on the order of the students."""

    checkpoints: tuple[int, ...]
    tau: float | None
    pairs: int
    inversions: tuple[Inversion, ...]

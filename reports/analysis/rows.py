"""The rows of a report: plain values, ready for JSON. Fractions, unless a name says points or nats."""

from dataclasses import dataclass, field

from evalsuite.reports.resampled import Estimate
from evalsuite.reports.statistics.interval import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One checkpoint on one benchmark under one protocol at one context."""

    subject: int
    benchmark: str
    protocol: str
    context: int | None
    documents: int
    seeds: int
    score: Interval
    """Wilson's interval for right-or-wrong answers, otherwise a t interval; log-perplexity for those."""
    seed_deviation: float | None = None
    """Standard deviation between seeds as such, beyond what sampling documents explains."""
    deficit: Interval | None = None
    """Teacher − student on the same documents; for a perplexity, student − teacher in nats."""
    recovery: Estimate = field(default_factory=lambda: Estimate(None, "no teacher"))
    centred: Estimate = field(default_factory=lambda: Estimate(None, "no teacher"))
    wins: int | None = None
    """Documents on which the student is above the teacher."""
    losses: int | None = None
    mcnemar: float | None = None
    """Exact p-value; None where answers are not right or wrong."""
    detectable: float | None = None
    """Smallest true deficit that these documents would have shown with probability 0.8."""
    outcomes: dict[str, int]
    """Answers per outcome, over documents and seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageRow:
    """One student (or teacher) averaged over a scope."""

    subject: int
    scope: str
    protocol: str
    benchmarks: tuple[str, ...]
    missing: tuple[str, ...]
    """Benchmarks of the scope that this checkpoint did not answer; it is then not ranked."""
    documents: int
    score: Interval
    deficit: Interval | None
    recovery: Estimate
    centred: Estimate
    win_and_tie: float | None
    rank: int | None = None
    """By recovery among students of the same teacher; equal numbers share a rank."""
    rank_low: int | None = None
    """Best rank that is not excluded: 1 + the number of students proven better."""
    rank_high: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """Both protocols on the same documents, for one student and one benchmark (or all of them)."""

    subject: int
    benchmark: str
    """A name, or `all` for the macro average."""
    context: int | None
    documents: int
    ranked: dict[str, float]
    """Scores under log-likelihood: teacher, student."""
    written: dict[str, float]
    """Scores under generation: teacher, student."""
    deficit_ranked: Interval
    deficit_written: Interval
    gap: Interval
    right: dict[str, list[float]]
    """teacher, student → documents right both ways, only ranked, only written, neither."""
    outcomes: dict[str, dict[str, float]]
    """teacher, student → share of written answers per outcome."""
    explained: dict[str, float | None]
    """Outcome → change of the gap when the documents of that class are dropped for both; None: none left."""
    chance: float | None = None
    """What guessing among the choices would score; None where that is not known."""

    @property
    def floored(self) -> bool:
        """Whether the teacher writes worse than guessing would score: little can then be lost."""
        return self.chance is not None and self.written["teacher"] < self.chance


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Any two checkpoints under one protocol, averaged over everything that both answered."""

    first: int
    second: int
    protocol: str
    documents: int
    difference: Interval
    """First − second."""
    p: float
    p_holm: float
    """Corrected for all pairs of the protocol."""
    wins: int
    losses: int
    mcnemar: float | None
    detectable: float | None

    @property
    def proven(self) -> bool:
        """Whether the two differ, after Holm's correction, at 5 %."""
        return self.p_holm <= 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Inversion:
    """Two checkpoints that the protocols put in opposite order."""

    ranked_above: int
    written_above: int
    difference_ranked: float
    difference_written: float
    proven: bool
    """Whether both differences are proven, after Holm's correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether the two protocols rank the students alike, on the documents asked under both."""

    subjects: tuple[int, ...]
    tau: float | None
    pairs: int
    inversions: tuple[Inversion, ...]

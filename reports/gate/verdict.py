"""The verdict of a gate: results per rule, and an exit code."""

from dataclasses import dataclass

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.gate.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED
from evalsuite.reports.rules.measurement import KEPT, ONE_RUN
from evalsuite.reports.rules.metric import Unit

EXIT = {PASS: 0, REGRESSION: 1, INCONCLUSIVE: 2, UNMEASURED: 3}
DIGITS: dict[Unit, int] = {"nats": 3, "ratio": 2}
"""Decimals of units with more or fewer than one."""
COSTS: dict[Unit, str] = {"ratio": "×", "ms": "ms", "GB": "GB"}
"""Units of inference cost, as they are shown. Their interval is the range of repeats, not of documents."""
WORDS = {
    0: "pass",
    1: "proven regression",
    2: "inconclusive",
    3: "could not be measured",
}


def amount(value: float, unit: Unit, of_fractions: str = "%") -> str:
    """A value with its unit: ``95.0 %``, ``5.0 points``; fractions are percentages, or points."""
    if unit == "fraction":
        return f"{formatting.plain(100 * value)} {of_fractions}"
    return f"{formatting.plain(value, DIGITS.get(unit, 1))} {COSTS.get(unit, unit)}"


def requirement(threshold: float, at_least: bool, unit: Unit, gain: float | None = None) -> str:
    """What a rule demands: ``at least 95.0 %``, ``at most 5.0 points``, ``between 98.0 % and 102.0 %``."""
    if gain is not None:
        low, high = sorted((threshold, gain))
        return f"between {amount(low, unit)} and {amount(high, unit)}"
    return f"{'at least' if at_least else 'at most'} {amount(threshold, unit)}"


ONLY_LOGLIKELIHOOD = (
    "Generation is not part of this verdict: a student may keep its teacher's choices by log-likelihood and "
    "lose most of what the teacher generates."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """The result of one rule for one checkpoint."""

    name: str
    checkpoint: str
    metric: str
    protocol: str | None
    outcome: str
    threshold: float
    at_least: bool
    gain: float | None = None
    """Of a rule that allows no change in either direction, the threshold on the other side."""
    unit: Unit = "points"
    point: float | None = None
    low: float | None = None
    high: float | None = None
    p_worse: float | None = None
    documents: int | None = None
    documents_needed: int | None = None
    mde: float | None = None
    over: str = ""
    """What the interval is over: the documents of one run, or training runs as well; empty for costs."""
    kept: float | None = None
    """Share of the teacher's lead over chance that the checkpoint keeps, where the demand on it decided."""
    why: str = ""
    """Why it could not be measured."""
    look_at: tuple[str, ...] = ()
    """`benchmark/document`"""

    @property
    def requirement(self) -> str:
        """Such as ``at least 95.0 %`` or ``at most 5.0 points``."""
        return requirement(self.threshold, self.at_least, self.unit, self.gain)

    @property
    def measured(self) -> str:
        """Such as ``93.1 % (91.8 to 94.4)``."""
        if self.point is None or self.low is None or self.high is None:
            return formatting.NOTHING
        scale, digits = (100, 1) if self.unit == "fraction" else (1, DIGITS.get(self.unit, 1))
        ends = formatting.ends(scale * self.low, scale * self.high, lambda end: formatting.plain(end, digits))
        return f"{amount(self.point, self.unit)} ({ends})"

    @property
    def sentence(self) -> str:
        """The measured value, the requirement, and the finding."""
        if self.outcome == UNMEASURED or self.point is None:
            return self.finding
        finding = f": {self.finding}" if self.finding else ""
        over = f"; over {self.over}" if self.over else ""
        return f"{self.measured}, required {self.requirement}{finding}{over}"

    @property
    def finding(self) -> str:
        """By how much and how surely the requirement is missed, or what would decide it; empty for a pass."""
        if self.outcome == UNMEASURED or self.point is None:
            return f"could not be measured: {self.why}"
        if self.outcome == INCONCLUSIVE and self.unit in COSTS:
            return "not decided: the threshold lies within the range of the repeats; measure more --repeats"
        if self.outcome == REGRESSION and self.unit in COSTS:
            return f"misses it by {amount(abs(self.point - self.threshold), self.unit)}"
        if self.outcome == REGRESSION:
            how = "gains more than allowed by" if self._gained else "misses it by"
            miss = f"{how} {amount(abs(self.point - self._crossed), self.unit, 'points')}"
            proof = f"proven (p {_p(self.p_worse)} after Holm's correction)"
            return f"{miss if self.kept is None else self._share_of_the_lead}, {proof}"
        if self.outcome == INCONCLUSIVE:
            together = " (all rules taken together)" if self._is_outside else ""
            share = "" if self.kept is None else f" ({self._share_of_the_lead})"
            return f"not decided by {counted(self.documents or 0, 'document')}{together}{share}; {self._more}"
        return ""

    @property
    def _share_of_the_lead(self) -> str:
        return (
            f"keeps {formatting.percent(self.kept)} % of the teacher's lead over chance, required at least "
            f"{formatting.percent(min(self.threshold, KEPT) if self.at_least else KEPT)} %"
        )

    @property
    def _more(self) -> str:
        """What would decide an inconclusive rule."""
        if self.over != ONE_RUN:
            return "more training runs (other seeds) or more documents would decide it"
        if self.documents_needed is None:
            return "the estimate equals the threshold, and no number of documents would decide it"
        return f"about {formatting.count(self.documents_needed)} would decide it"

    @property
    def _is_outside(self) -> bool:
        """Whether the interval misses the threshold, and only Holm's correction prevents a regression."""
        if self.low is None or self.high is None:
            return False
        return self.high < self._crossed if self.at_least != self._gained else self.low > self._crossed

    @property
    def _gained(self) -> bool:
        """Whether the estimate lies nearer to the threshold on a gain than to that on a loss."""
        if self.gain is None or self.point is None:
            return False
        return abs(self.point - self.gain) < abs(self.point - self.threshold)

    @property
    def _crossed(self) -> float:
        """The threshold that the estimate is nearest to."""
        return self.gain if self._gained and self.gain is not None else self.threshold


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision over all rules."""

    results: tuple[RuleResult, ...]
    exit_code: int
    tolerated: int
    """Number of inconclusive results that the policy tolerates."""
    warnings: tuple[str, ...]
    policy: str = ""
    """Name of the policy; empty for the options of a command."""
    policy_id: str = ""
    """`identity` of the policy."""

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return WORDS[self.exit_code]

    @property
    def by_checkpoint(self) -> dict[str, str]:
        """Label → its gravest outcome: a regression, else unmeasured, else inconclusive, else pass."""
        found: dict[str, str] = {}
        for result in self.results:
            outcomes = (found.get(result.checkpoint, PASS), result.outcome)
            found[result.checkpoint] = min(outcomes, key=(REGRESSION, UNMEASURED, INCONCLUSIVE, PASS).index)
        return found

    @property
    def text(self) -> str:
        """For a terminal: one line per result, then the verdict."""
        width = max(len(result.outcome) for result in self.results)
        lines = [f"{r.outcome:{width}}  {r.checkpoint}: {r.name}: {r.sentence}" for r in self.results]
        lines += [f"{'look at':{width}}  {r.checkpoint}: {', '.join(r.look_at)}" for r in self._failing]
        lines += [f"{'warning':{width}}  {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"gate: {self.word}{self._tolerance}"])

    @property
    def _failing(self) -> list[RuleResult]:
        return [result for result in self.results if result.outcome == REGRESSION and result.look_at]

    @property
    def _tolerance(self) -> str:
        if self.exit_code != 0 or not self.tolerated:
            return ""
        return f" ({self.tolerated} inconclusive, tolerated by the policy)"

    @property
    def sentence(self) -> str:
        """Number of results per outcome: ``1 pass, 2 proven regression.``"""
        counts = {name: sum(result.outcome == name for result in self.results) for name in EXIT}
        parts = [f"{number} {WORDS[EXIT[name]]}" for name, number in counts.items() if number]
        return f"{', '.join(parts)}{self._tolerance}."


def _p(value: float | None) -> str:
    return "unknown" if value is None else "< 0.001" if value < 0.001 else f"= {value:.3f}"

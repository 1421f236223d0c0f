"""The plan of a gate: how often a policy would notice a loss, and how often it would fail without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from evalsuite.foundation import ConfigError, counted
from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.scopes import weights_of
from evalsuite.reports.gate.policy import Policy, PolicyRule
from evalsuite.reports.gate.verdict import requirement
from evalsuite.reports.json_values import to_json
from evalsuite.reports.measures.recovery import STATED
from evalsuite.reports.rules.evidence import matches
from evalsuite.reports.run import Benchmark, Manifest, ProtocolSettings
from evalsuite.reports.statistics.power import (
    DecisionRates,
    Level,
    PlannedStratum,
    Truth,
    decision_rates,
    documents_for_power,
)
from evalsuite.reports.table import aligned

SCHEMA = 1
EVEN = 0.5
"""A policy that notices the loss less often than this is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a plan assumes to be true."""

    loss: float = 5.0
    """True loss, in points of the score: a regression that vLLM's GSM8K tolerance misses (vLLM RFC 34333)."""
    churn: float = 0.15
    """Share of documents that exactly one of the two checkpoints has right, with and without the loss. Two
    training runs of one recipe choose differently on 11.5 % of documents (reports/results/flips)."""
    score: float = 0.7
    """Score of the teacher, or of the baseline; only recoveries, `retained` and `score` depend on it."""
    power: float = 0.8
    """Probability to aim at: the one that the minimum detectable effect of every report states."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of range, or values that exclude each other."""
        for name, value, low, high, what in (
            ("loss", self.loss, 0.0, 100.0, "in points, above 0 and at most 100"),
            ("churn", self.churn, 0.0, 1.0, "a fraction, above 0 and at most 1: 0.15 means 15 %"),
            ("score", self.score, 0.0, 1.0, "a fraction, above 0 and at most 1: 0.7 means 70 %"),
            ("power", self.power, EVEN, 0.999, "a fraction, above 0.5 and at most 0.999: 0.8 means 80 %"),
        ):
            if not (isfinite(value) and low < value <= high):
                raise ConfigError(f"--{name} {value:g}: must be {what}")
        for truth in (self.truth(lost=False), self.truth(lost=True)):
            if truth.problem is not None:
                raise ConfigError(f"--loss/--churn/--score: {truth.problem}")

    def truth(self, *, lost: bool, chance: float = 0.0) -> Truth:
        """The two checkpoints, with the loss or unchanged."""
        return Truth(self.score, self.churn, self.loss / 100 if lost else 0.0, chance)


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """Documents of one benchmark under one protocol at one context, as a rule selects them."""

    benchmark: Benchmark
    protocol: str
    context: int | None
    documents: int

    @property
    def chance(self) -> float:
        """Chance level as a fraction; 0 where each document has its own, or it is not known."""
        chance = self.benchmark.chance
        return 0.0 if chance is None or isinstance(chance, str) else float(chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRule:
    """The plan of one rule for one checkpoint."""

    name: str
    requirement: str
    documents: int
    benchmarks: int
    unchanged: DecisionRates | None = None
    """How often it fails (a false alarm) and passes where nothing changed; None: it cannot be planned."""
    lost: DecisionRates | None = None
    """The same with the loss; how often it fails is its power."""
    tolerates: bool = False
    """Whether the loss is within the requirement, so that no number of documents makes it fail."""
    documents_for_power: int | None = None
    """Documents over all benchmarks that would give the power; None: it tolerates the loss."""
    why: str = ""
    """Why it cannot be planned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Power and false alarms of a policy."""

    assumptions: Assumptions
    rules: tuple[PlannedRule, ...]
    students: int
    """Checkpoints that the policy is applied to."""
    tests: int
    """Rules × protocols × checkpoints: the tests of Holm's correction."""
    tolerant: bool
    """Whether the policy tolerates an inconclusive rule."""

    @property
    def planned(self) -> tuple[PlannedRule, ...]:
        """The rules that can be planned."""
        return tuple(rule for rule in self.rules if rule.lost is not None)

    @property
    def power(self) -> float | None:
        """Power of the policy, that of its best rule; None if no rule can be planned."""
        return max((rule.lost.fails for rule in self.planned if rule.lost), default=None)

    @property
    def false_alarms(self) -> float:
        """Bound of the probability that any rule fails a checkpoint where nothing changed."""
        return sum(rule.unchanged.fails for rule in self.planned if rule.unchanged)

    @property
    def warning(self) -> str | None:
        """One sentence if the policy would more likely miss the loss than notice it; else None."""
        if self.power is None or self.power >= EVEN:
            return None
        best = max(self.planned, key=lambda rule: rule.lost.fails if rule.lost else 0.0)
        needed = [each.documents_for_power for each in self.planned if each.documents_for_power]
        way_out = (
            f"about {formatting.count(min(needed))} documents would give {100 * self.assumptions.power:g} %"
            if needed
            else "every rule tolerates such a loss"
        )
        return (
            f"This policy has less than an even chance to notice a loss of {self.assumptions.loss:g} points: "
            f"it fails in {_percent(self.power)} of the runs ({best.name}); {way_out}."
        )

    @property
    def text(self) -> str:
        """For a terminal: the assumptions, a table, and what to know."""
        loss = f"{self.assumptions.loss:g} points lost"
        head = ("rule", "required", "documents", "fails", "passes", "fails", "passes", self._aim)
        rows = [_row(rule) for rule in self.planned]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        before = sum(widths[:3]) + 6
        over = " " * before + f"{'unchanged':<{widths[3] + widths[4] + 4}}{loss}"
        lines = [self._assumed]
        if rows:
            lines += ["", over, aligned([head, *rows]), ""]
        lines += [
            f"not planned: {rule.name} {rule.requirement}: {rule.why}" for rule in self.rules if rule.why
        ]
        if rows:
            rest = "tolerated by this policy" if self.tolerant else "exit code 2"
            lines.append(
                f"What neither fails nor passes is inconclusive ({rest}). Where nothing changed, at most "
                f"{_percent(self.false_alarms)} of the verdicts on a checkpoint are a proven regression."
            )
        lines += [self.warning] if self.warning else []
        return "\n".join(lines)

    @property
    def _aim(self) -> str:
        return f"documents for {100 * self.assumptions.power:g} %"

    @property
    def _assumed(self) -> str:
        given = self.assumptions
        return (
            f"Assumed: {100 * given.churn:g} % of the answers differ (--churn), {given.loss:g} points are "
            f"lost (--loss), the teacher or baseline scores {100 * given.score:g} % (--score); "
            f"{counted(self.students, 'checkpoint')}, "
            f"{counted(self.tests, 'test')} in Holm's correction."
        )

    def to_json(self) -> dict[str, Any]:
        """Content of `--json`."""
        return {
            "schema": SCHEMA,
            "assumptions": to_json(self.assumptions),
            "students": self.students,
            "tests": self.tests,
            "power": self.power,
            "false_alarms": self.false_alarms,
            "warning": self.warning,
            "rules": [to_json(rule) for rule in self.rules],
        }


def plan_policy(
    policy: Policy,
    *,
    documents: Sequence[int] = (),
    manifests: Sequence[Manifest] = (),
    students: int | None = None,
    assumptions: Assumptions | None = None,
) -> Plan:
    """Compute the power and the false alarms of every rule of a policy.

    Args:
        policy: the rules.
        documents: number of documents of each benchmark that a rule averages; a rule on one benchmark counts
            the least of them. A rule that states no protocol is planned under both.
        manifests: of runs, finished or planned, whose documents count instead.
        students: checkpoints that the policy is applied to; None: those that it names, else those of the
            runs, else one.
        assumptions: what is true; see the defaults.

    Raises:
        ConfigError: neither or both of documents and manifests, or a number that is no number of documents.
    """
    given = assumptions or Assumptions()
    if bool(documents) == bool(manifests):
        raise ConfigError("a plan needs either run folders or --documents N, documents of each benchmark")
    for number in documents:
        if not 2 <= number <= 10**9:
            raise ConfigError(f"--documents {number}: must be at least 2 and at most 1,000,000,000")
    count = students or len(policy.checkpoints) or _students(manifests) or 1
    tasks = [
        (rule, protocol, cells)
        for rule in policy.rules
        for protocol, cells in _selected(rule, policy, manifests, documents).items()
    ]
    tests = sum(len(rule.checkpoints) or count for rule, *_ in tasks)
    alpha = (1 - policy.confidence) / 2
    rules = []
    for rule, protocol, cells in tasks:
        is_over_runs = rule.kind.over_runs and (rule.over or policy.over) != "documents"
        spread = (policy.run_spread or 0.0) / 100 if is_over_runs else 0.0
        rules.append(
            _planned(rule, protocol, cells, given, Level(alpha, alpha / max(1, tests), spread, STATED))
        )
    return Plan(given, tuple(rules), count, tests, policy.inconclusive == "tolerate")


def _students(manifests: Sequence[Manifest]) -> int:
    return len({each.label for m in manifests for each in m.checkpoints if each.role == "student"})


def _selected(
    rule: PolicyRule, policy: Policy, manifests: Sequence[Manifest], documents: Sequence[int]
) -> Mapping[str | None, list[PlannedCell]]:
    """Protocol → planned cells of a rule; None for a rule between the protocols, or without one."""
    benchmarks = _stated(rule, documents) if documents else list(_benchmarks(manifests).values())
    benchmarks = [each for each in benchmarks if each.name in policy.benchmarks or not policy.benchmarks]
    found: dict[str | None, list[PlannedCell]] = {}
    for protocol in PROTOCOLS if rule.protocol is None else (rule.protocol,):
        cells = [
            PlannedCell(each, protocol, context, how.planned(context))
            for each in benchmarks
            if (how := each.protocols.get(protocol)) is not None and how.direction == "higher"
            for context in how.contexts
        ]
        cells = [cell for cell in cells if documents or matches(rule, cell)]
        if rule.kind.protocols == "each":
            found |= {protocol: cells} if cells or rule.protocol else {}
        else:
            keys = {(cell.benchmark.name, cell.context) for cell in cells}
            old = found.get(None, cells)
            found[None] = [cell for cell in old if (cell.benchmark.name, cell.context) in keys]
    return found or {rule.protocol: []}


def _benchmarks(manifests: Sequence[Manifest]) -> dict[str, Benchmark]:
    found: dict[str, Benchmark] = {}
    for manifest in manifests:
        for benchmark in manifest.benchmarks:
            found.setdefault(benchmark.name, benchmark)
    return found


def _stated(rule: PolicyRule, documents: Sequence[int]) -> list[Benchmark]:
    """Benchmarks of these numbers of documents; one, of the least, for a rule that names a benchmark."""
    numbers = [min(documents)] if rule.benchmark is not None else list(documents)
    return [
        Benchmark(
            name=rule.benchmark or f"benchmark{i}",
            title="",
            category=rule.category or "knowledge",
            protocols={name: ProtocolSettings(metric="acc", documents=number) for name in PROTOCOLS},
        )
        for i, number in enumerate(numbers)
    ]


def _planned(
    rule: PolicyRule, protocol: str | None, cells: Sequence[PlannedCell], given: Assumptions, level: Level
) -> PlannedRule:
    result = PlannedRule(
        name=rule.title(protocol),
        requirement=requirement(rule.threshold, rule.kind.bound == "min", rule.kind.unit, rule.gain),
        documents=sum(cell.documents for cell in cells),
        benchmarks=len({cell.benchmark.name for cell in cells}),
    )
    margin = rule.kind.planned
    if margin is None:
        why = "what its estimate varies by is not known before a run"
        return replace(result, why=f"{rule.metric} is decided when it is measured; {why}")
    if not cells:
        return replace(result, why="the runs have no benchmark that it is about")
    unit = 100 if rule.kind.unit == "points" else 1

    def stratum(cell: PlannedCell, weight: float, lost: bool) -> PlannedStratum:
        truth = given.truth(lost=lost, chance=cell.chance)
        gain = None if rule.gain is None else margin(truth, rule.gain / unit).reversed()
        return PlannedStratum(cell.documents, weight, margin(truth, rule.threshold / unit), gain)

    def strata(lost: bool) -> list[PlannedStratum]:
        return [stratum(cell, weight, lost) for cell, weight in zip(cells, weights_of(cells), strict=True)]

    lost = strata(True)
    return replace(
        result,
        unchanged=decision_rates(strata(False), level),
        lost=decision_rates(lost, level),
        tolerates=sum(each.weight * each.margin.mean for each in lost) >= -1e-12,
        documents_for_power=documents_for_power(lost, level, given.power),
    )


def _row(rule: PlannedRule) -> tuple[str, ...]:
    assert rule.unchanged is not None
    assert rule.lost is not None
    needed = "tolerated" if rule.tolerates else "too many"
    return (
        rule.name,
        rule.requirement,
        formatting.count(rule.documents),
        _percent(rule.unchanged.fails),
        _percent(rule.unchanged.passes),
        _percent(rule.lost.fails),
        _percent(rule.lost.passes),
        formatting.count(rule.documents_for_power) if rule.documents_for_power else needed,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

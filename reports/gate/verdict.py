"""The verdict of a gate: run folders and a policy in, results per rule and an exit code out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalsuite.reports import formatting
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.gate.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED, Decision, decide
from evalsuite.reports.gate.evidence import Evidence
from evalsuite.reports.gate.measurement import KEPT, ONE_RUN, Measurement, NotMeasured
from evalsuite.reports.gate.metrics import Unit
from evalsuite.reports.gate.policy import Policy, Rule
from evalsuite.reports.gate.selection import measured_benchmarks, only_benchmarks, too_many_excluded
from evalsuite.reports.records.names import find
from evalsuite.reports.records.run_selection import RunSelection

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
        return f"{'at least' if self.at_least else 'at most'} {self._amount(self.threshold)}"

    @property
    def measured(self) -> str:
        """Such as ``93.1 % (91.8 to 94.4)``."""
        if self.point is None or self.low is None or self.high is None:
            return formatting.NOTHING
        scale, digits = (100, 1) if self.unit == "fraction" else (1, DIGITS.get(self.unit, 1))
        ends = formatting.ends(scale * self.low, scale * self.high, lambda end: formatting.plain(end, digits))
        return f"{self._amount(self.point)} ({ends})"

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
            return f"misses it by {self._amount(abs(self.point - self.threshold))}"
        if self.outcome == REGRESSION:
            miss = f"misses it by {self._amount(abs(self.point - self.threshold), 'points')}"
            proof = f"proven (p {_p(self.p_worse)} after Holm's correction)"
            return f"{miss if self.kept is None else self._share_of_the_lead}, {proof}"
        if self.outcome == INCONCLUSIVE:
            together = " (all rules taken together)" if self._is_outside else ""
            share = "" if self.kept is None else f" ({self._share_of_the_lead})"
            return (
                f"not decided by {formatting.count(self.documents or 0)} documents{together}{share}; "
                f"{self._more}"
            )
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
        return self.high < self.threshold if self.at_least else self.low > self.threshold

    def _amount(self, value: float, unit: str = "%") -> str:
        if self.unit == "fraction":
            return f"{formatting.plain(100 * value)} {unit}"
        if self.unit in COSTS:
            return f"{formatting.plain(value, DIGITS.get(self.unit, 1))} {COSTS[self.unit]}"
        return (
            f"{formatting.plain(value, 3)} nats"
            if self.unit == "nats"
            else f"{formatting.plain(value)} points"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision over all rules."""

    results: tuple[RuleResult, ...]
    exit_code: int
    tolerated: int
    """Number of inconclusive results that the policy tolerates."""
    warnings: tuple[str, ...]

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return WORDS[self.exit_code]

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


def run_gate(
    runs: Sequence[Path],
    policy: Policy,
    *,
    out: Path | None = None,
    selection: RunSelection | None = None,
) -> Verdict:
    """Apply a policy to run folders.

    With `out`, writes junit.xml, gate.md and gate.json there. If GITHUB_STEP_SUMMARY names a file, the
    content of gate.md is appended to it; a file that cannot be written is a warning of the verdict.

    Args:
        runs: run folders.
        policy: the rules.
        out: folder for the files.
        selection: teacher, checkpoints, partial cells and errors; default: as the policy states.

    Returns:
        The verdict; `exit_code` is 0 pass, 1 proven regression, 2 inconclusive, 3 could not be measured.

    Raises:
        ConfigError: as `apply_policy`.
        RunFolderError, DataError: as `load_result_tensor`.
    """
    from evalsuite.reports.gate.outputs import markdown, write_verdict

    verdict = apply_policy(load_result_tensor(list(runs), policy.select(selection)), policy)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.write(markdown(verdict))
        except OSError as error:
            warning = f"GITHUB_STEP_SUMMARY: {summary} cannot be written ({error.strerror})."
            verdict = replace(verdict, warnings=(*verdict.warnings, warning))
    if out is not None:
        write_verdict(verdict, Path(out))
    return verdict


def apply_policy(tensor: ResultTensor, policy: Policy) -> Verdict:
    """Apply a policy to loaded results, without writing files.

    Raises:
        ConfigError: the policy names a checkpoint or a benchmark that no run has, or several have.
    """
    tensor = only_benchmarks(tensor, policy.benchmarks)
    evidence = Evidence(tensor, policy)
    tasks = [
        (rule, protocol, checkpoint)
        for rule in policy.rules
        for checkpoint in _selected(tensor, rule, policy)
        if checkpoint < len(tensor.checkpoints)
        for protocol in _protocols(tensor, rule)
    ]
    found = [too_many_excluded(evidence, *task) or task[0].kind.measure(evidence, *task) for task in tasks]
    # The runs of one recipe share a measurement, which is one test.
    tests: dict[object, tuple[Rule, Measurement]] = {}
    keys = [
        (id(rule), protocol, getattr(each, "runs", ()) or checkpoint)
        for (rule, protocol, checkpoint), each in zip(tasks, found, strict=True)
    ]
    for key, (rule, _, _), each in zip(keys, tasks, found, strict=True):
        if isinstance(each, Measurement):
            tests.setdefault(key, (rule, each))
    decisions = decide(
        [measurement for _, measurement in tests.values()],
        [rule.threshold for rule, _ in tests.values()],
        [rule.kind.bound == "min" for rule, _ in tests.values()],
        policy.confidence,
    )
    decided = dict(zip(tests, decisions, strict=True))
    results = [
        _result(tensor, task, each, decided.get(key))
        for key, task, each in zip(keys, tasks, found, strict=True)
    ]
    results += [
        _unmeasured(rule, protocol, each.label, f"it {each.why}")
        for rule in policy.rules
        for number, each in enumerate(tensor.merged.diverged, len(tensor.checkpoints))
        if number in _selected(tensor, rule, policy)
        for protocol in _protocols(tensor, rule)
    ]
    if not results:
        why = f"the run has no student, only {', '.join(entry.label for entry in tensor.checkpoints)}"
        results = [
            _unmeasured(rule, protocol, "(no student)", why)
            for rule in policy.rules
            for protocol in _protocols(tensor, rule)
        ]
    warnings = tensor.warnings
    measured = measured_benchmarks(tensor)
    if measured and any(result.outcome == UNMEASURED for result in results):
        names = " ".join(measured)
        warnings = (*warnings, f"The run is not finished. To gate what it has: --benchmark {names}")
    if {result.protocol for result in results} == {"loglikelihood"}:
        warnings = (*warnings, ONLY_LOGLIKELIHOOD)
    return _verdict(results, policy, warnings)


def _selected(tensor: ResultTensor, rule: Rule, policy: Policy) -> list[int]:
    """Indices of what a rule applies to: its own checkpoints, those of the policy, or every student.

    Diverged students follow the checkpoints of the tensor. Selected checkpoints (`--checkpoint`) replace
    those of the policy, but not those of a rule.

    Raises:
        ConfigError: a name that no checkpoint has, or several have.
    """
    names = rule.checkpoints or (() if tensor.selection.checkpoints else policy.checkpoints)
    known = tensor.merged.named
    where = "policy, among the selected checkpoints" if tensor.selection.checkpoints else "policy"
    if names:
        return list(dict.fromkeys(find(name, known, where) for name in names))
    teachers = {i for i, each in enumerate(tensor.checkpoints) if each.is_teacher}
    return [i for i in range(len(known)) if i not in teachers]


def _protocols(tensor: ResultTensor, rule: Rule) -> list[str | None]:
    """Protocols under which a rule is evaluated; [None] for a metric of both or none."""
    if rule.kind.protocols != "each":
        return [None]
    if rule.protocol is not None:
        return [rule.protocol]
    planned = [
        name
        for benchmark in tensor.merged.benchmarks
        if rule.benchmark in (None, benchmark.name) and rule.category in (None, benchmark.category)
        for name, plan in benchmark.protocols.items()
        if plan.direction == "higher"
    ]
    return list(dict.fromkeys(planned)) or ["loglikelihood"]


def _name(rule: Rule, protocol: str | None) -> str:
    if rule.name:
        return rule.name if protocol is None or rule.protocol else f"{rule.name}, {protocol}"
    what = rule.benchmark or rule.category or "average"
    if rule.is_informative:
        what = "informative benchmarks"
    parts = [rule.metric.replace("_", " ") + ("" if rule.kind.needs_context else f" of {what}")]
    if rule.context:
        parts.append(f"at {rule.context:,} tokens")
    if protocol:
        parts.append(f"under {protocol}")
    return " ".join(parts)


def _result(
    tensor: ResultTensor,
    task: tuple[Rule, str | None, int],
    found: Measurement | NotMeasured,
    decision: Decision | None,
) -> RuleResult:
    rule, protocol, checkpoint = task
    label = tensor.checkpoints[checkpoint].label
    if isinstance(found, NotMeasured) or decision is None:
        return _unmeasured(rule, protocol, label, found.why if isinstance(found, NotMeasured) else "")
    return RuleResult(
        name=_name(rule, protocol),
        checkpoint=label,
        metric=rule.metric,
        protocol=protocol,
        outcome=decision.outcome,
        threshold=rule.threshold,
        at_least=rule.kind.bound == "min",
        unit=rule.kind.unit,
        point=found.point,
        low=decision.low,
        high=decision.high,
        p_worse=decision.p_worse,
        documents=found.documents,
        documents_needed=decision.documents_needed,
        mde=decision.mde,
        over="" if rule.kind.unit in COSTS else found.over,
        kept=None if decision.outcome == PASS else found.kept(rule.threshold),
        look_at=found.look_at if decision.outcome != PASS else (),
    )


def _unmeasured(rule: Rule, protocol: str | None, checkpoint: str, why: str) -> RuleResult:
    return RuleResult(
        name=_name(rule, protocol),
        checkpoint=checkpoint,
        metric=rule.metric,
        protocol=protocol,
        outcome=UNMEASURED,
        threshold=rule.threshold,
        at_least=rule.kind.bound == "min",
        unit=rule.kind.unit,
        why=why,
    )


def _verdict(results: Sequence[RuleResult], policy: Policy, warnings: tuple[str, ...]) -> Verdict:
    outcomes = {result.outcome for result in results}
    undecided = sum(result.outcome == INCONCLUSIVE for result in results)
    if REGRESSION in outcomes:
        code = EXIT[REGRESSION]
    elif UNMEASURED in outcomes:
        code = EXIT[UNMEASURED]
    elif undecided and policy.inconclusive == "stop":
        code = EXIT[INCONCLUSIVE]
    else:
        code = EXIT[PASS]
    return Verdict(tuple(results), code, undecided if code == 0 else 0, warnings)


def _p(value: float | None) -> str:
    return "unknown" if value is None else "< 0.001" if value < 0.001 else f"= {value:.3f}"

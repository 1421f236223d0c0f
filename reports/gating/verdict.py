"""`gate`: runs and a policy in, a verdict out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalsuite.foundation import ConfigError, nearest
from evalsuite.reports import words
from evalsuite.reports.gating.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED, Ruling, rule
from evalsuite.reports.gating.measure import Bench, Measured, Unmeasured
from evalsuite.reports.gating.policy import AT_LEAST, Line, Policy
from evalsuite.reports.panel import Panel, load_panel

EXIT = {PASS: 0, REGRESSION: 1, INCONCLUSIVE: 2, UNMEASURED: 3}
WORDS = {
    0: "pass",
    1: "proven regression",
    2: "inconclusive",
    3: "could not be measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One line of the policy for one checkpoint."""

    name: str
    checkpoint: str
    metric: str
    protocol: str | None
    outcome: str
    threshold: float
    at_least: bool
    point: float | None = None
    low: float | None = None
    high: float | None = None
    p_worse: float | None = None
    documents: int | None = None
    documents_needed: int | None = None
    detectable: float | None = None
    why: str = ""
    """Why it could not be measured."""
    look_at: tuple[str, ...] = ()
    """`benchmark/document`"""

    @property
    def demand(self) -> str:
        """Such as ``at least 95.0 %`` or ``at most 5.0 points``."""
        return f"{'at least' if self.at_least else 'at most'} {self._amount(self.threshold)}"

    @property
    def found(self) -> str:
        """Such as ``93.1 % (91.8 to 94.4)``."""
        if self.point is None or self.low is None or self.high is None:
            return words.NOTHING
        scale = 100 if self.at_least else 1
        ends = f"{words.plain(scale * self.low)} to {words.plain(scale * self.high)}"
        return f"{self._amount(self.point)} ({ends})"

    @property
    def sentence(self) -> str:
        """What was found, by how much it misses, how sure that is."""
        if self.outcome == UNMEASURED or self.point is None:
            return self.finding
        return ": ".join(part for part in (f"{self.found}, {self.demand} demanded", self.finding) if part)

    @property
    def finding(self) -> str:
        """By how much it misses and how sure that is, or what would decide it; empty for a pass."""
        if self.outcome == UNMEASURED or self.point is None:
            return f"could not be measured: {self.why}"
        if self.outcome == REGRESSION:
            miss = self._amount(abs(self.point - self.threshold), "points")
            return f"misses it by {miss}, proven (p {_p(self.p_worse)} after Holm's correction)"
        if self.outcome == INCONCLUSIVE:
            together = " (all lines taken together)" if self._outside else ""
            more = (
                f"about {words.count(self.documents_needed)} would decide it"
                if self.documents_needed is not None
                else "it stands on the threshold, and no number of documents would decide it"
            )
            return f"not decided by {words.count(self.documents or 0)} documents{together}; {more}"
        return ""

    @property
    def _outside(self) -> bool:
        """Whether the interval alone misses the threshold, so that only the other lines hold it back."""
        if self.low is None or self.high is None:
            return False
        return self.high < self.threshold if self.at_least else self.low > self.threshold

    def _amount(self, value: float, unit: str = "%") -> str:
        if self.at_least:
            return f"{words.plain(100 * value)} {unit}"
        return f"{words.plain(value)} points"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision over all lines."""

    decisions: tuple[Decision, ...]
    exit_code: int
    tolerated: int
    """Inconclusive lines that the policy lets pass."""
    warnings: tuple[str, ...]

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return WORDS[self.exit_code]

    @property
    def text(self) -> str:
        """For a terminal: one line per decision, then the verdict."""
        width = max(len(decision.outcome) for decision in self.decisions)
        lines = [f"{d.outcome:{width}}  {d.checkpoint}: {d.name}: {d.sentence}" for d in self.decisions]
        lines += [f"{'look at':{width}}  {d.checkpoint}: {', '.join(d.look_at)}" for d in self._failing]
        return "\n".join([*lines, f"gate: {self.word}{self._tolerance}"])

    @property
    def _failing(self) -> list[Decision]:
        return [
            decision for decision in self.decisions if decision.outcome == REGRESSION and decision.look_at
        ]

    @property
    def _tolerance(self) -> str:
        if self.exit_code != 0 or not self.tolerated:
            return ""
        return f" ({self.tolerated} inconclusive, tolerated by the policy)"

    @property
    def sentence(self) -> str:
        """How many lines ended how: ``1 pass, 2 proven regression.``"""
        counts = {name: sum(d.outcome == name for d in self.decisions) for name in EXIT}
        said = [f"{number} {WORDS[EXIT[name]]}" for name, number in counts.items() if number]
        return f"{', '.join(said)}{self._tolerance}."


def gate(
    runs: Sequence[Path], policy: Policy, *, out: Path | None = None, teacher: str | None = None
) -> Verdict:
    """Judge runs by a policy.

    With `out`, writes junit.xml, gate.md and gate.json there. Where GITHUB_STEP_SUMMARY names a file, what
    gate.md holds is appended to it.

    Args:
        runs: run folders.
        policy: what is demanded.
        out: folder for the files.
        teacher: label or weights_id of the only teacher; default: as the plans say.

    Returns:
        The verdict; `exit_code` is 0 pass, 1 proven regression, 2 inconclusive, 3 could not be measured.

    Raises:
        ConfigError: the policy names a checkpoint that no run has.
        RunFolderError, DataError: as `load_panel`.
    """
    from evalsuite.reports.gating.outputs import markdown, write_verdict

    verdict = judge(load_panel(list(runs), teacher), policy)
    if out is not None:
        write_verdict(verdict, Path(out))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(markdown(verdict))
    return verdict


def judge(panel: Panel, policy: Policy) -> Verdict:
    """Judge answers by a policy; as `gate`, but nothing is written."""
    bench = Bench(panel)
    tasks = [
        (line, protocol, subject)
        for line in policy.lines
        for subject in _judged(panel, line.checkpoints or policy.checkpoints)
        for protocol in _protocols(panel, line)
    ]
    results = [bench.measure(line, protocol, subject) for line, protocol, subject in tasks]
    measured = [
        (task, result) for task, result in zip(tasks, results, strict=True) if isinstance(result, Measured)
    ]
    rulings = rule(
        [result for _, result in measured],
        [line.threshold for (line, _, _), _ in measured],
        [line.metric in AT_LEAST for (line, _, _), _ in measured],
        policy.confidence,
    )
    queue = iter(rulings)
    decisions = [
        _decision(panel, task, result, next(queue) if isinstance(result, Measured) else None)
        for task, result in zip(tasks, results, strict=True)
    ]
    if not decisions:
        decisions = [
            _without_subject(panel, line, protocol)
            for line in policy.lines
            for protocol in _protocols(panel, line)
        ]
    return _verdict(decisions, policy, panel.warnings)


def _judged(panel: Panel, labels: Sequence[str]) -> list[int]:
    known = {subject.label: i for i, subject in enumerate(panel.subjects)}
    for label in labels:
        if label not in known:
            raise ConfigError(f"policy: no run has a checkpoint '{label}'{nearest(label, known)}")
    return [known[label] for label in labels] or [
        i for i, subject in enumerate(panel.subjects) if not subject.is_teacher
    ]


def _protocols(panel: Panel, line: Line) -> list[str | None]:
    if line.metric == "gap":
        return [None]
    if line.protocol is not None:
        return [line.protocol]
    meant = [
        name
        for benchmark in panel.merged.benchmarks
        if line.benchmark in (None, benchmark.name) and line.category in (None, benchmark.category)
        for name, how in benchmark.protocols.items()
        if how.direction == "higher"
    ]
    return list(dict.fromkeys(meant)) or ["loglikelihood"]


def _name(line: Line, protocol: str | None) -> str:
    if line.name:
        return line.name if protocol is None or line.protocol else f"{line.name}, {protocol}"
    what = line.benchmark or line.category or "average"
    parts = [f"{line.metric.replace('_', ' ')} of {what}"]
    if line.context:
        parts.append(f"at {line.context:,} tokens")
    if protocol:
        parts.append(f"under {protocol}")
    return " ".join(parts)


def _decision(
    panel: Panel,
    task: tuple[Line, str | None, int],
    result: Measured | Unmeasured,
    ruling: Ruling | None,
) -> Decision:
    line, protocol, subject = task
    label = panel.subjects[subject].label
    at_least = line.metric in AT_LEAST
    if isinstance(result, Unmeasured) or ruling is None:
        return Decision(
            name=_name(line, protocol),
            checkpoint=label,
            metric=line.metric,
            protocol=protocol,
            outcome=UNMEASURED,
            threshold=line.threshold,
            at_least=at_least,
            why=result.why if isinstance(result, Unmeasured) else "",
        )
    return Decision(
        name=_name(line, protocol),
        checkpoint=label,
        metric=line.metric,
        protocol=protocol,
        outcome=ruling.outcome,
        threshold=line.threshold,
        at_least=at_least,
        point=result.point,
        low=ruling.low,
        high=ruling.high,
        p_worse=ruling.p_worse,
        documents=result.documents,
        documents_needed=ruling.documents_needed,
        detectable=ruling.detectable,
        look_at=result.look_at if ruling.outcome != PASS else (),
    )


def _without_subject(panel: Panel, line: Line, protocol: str | None) -> Decision:
    return Decision(
        name=_name(line, protocol),
        checkpoint="(no student)",
        metric=line.metric,
        protocol=protocol,
        outcome=UNMEASURED,
        threshold=line.threshold,
        at_least=line.metric in AT_LEAST,
        why=f"the run has no student, only {', '.join(s.label for s in panel.subjects)}",
    )


def _verdict(decisions: Sequence[Decision], policy: Policy, warnings: tuple[str, ...]) -> Verdict:
    outcomes = {decision.outcome for decision in decisions}
    undecided = sum(decision.outcome == INCONCLUSIVE for decision in decisions)
    if REGRESSION in outcomes:
        code = EXIT[REGRESSION]
    elif UNMEASURED in outcomes:
        code = EXIT[UNMEASURED]
    elif undecided and policy.inconclusive == "stop":
        code = EXIT[INCONCLUSIVE]
    else:
        code = EXIT[PASS]
    return Verdict(tuple(decisions), code, undecided if code == 0 else 0, warnings)


def _p(value: float | None) -> str:
    return "unknown" if value is None else "< 0.001" if value < 0.001 else f"= {value:.3f}"

"""The gate: run folders and a policy in, a verdict out."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.gate.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED, Decision, decide
from evalsuite.reports.gate.outputs import markdown, write_verdict
from evalsuite.reports.gate.policy import Policy, PolicyRule
from evalsuite.reports.gate.selection import measured_benchmarks, only_benchmarks, too_many_excluded
from evalsuite.reports.gate.verdict import COSTS, EXIT, ONLY_LOGLIKELIHOOD, RuleResult, Verdict
from evalsuite.reports.records.names import find
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.rules.evidence import Evidence
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.run import Benchmark

Task = tuple[PolicyRule, str | None, int]
"""A rule, the protocol that it is decided under, and a checkpoint."""


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
    return publish(apply_policy(load_result_tensor(list(runs), policy.select(selection)), policy), out)


def publish(verdict: Verdict, out: Path | None) -> Verdict:
    """Write the files of a verdict and the summary of a GitHub job; a summary that fails is a warning."""
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
    evidence = Evidence(tensor, over=policy.over, run_spread=policy.run_spread)
    tasks = [
        (rule, protocol, checkpoint)
        for rule in policy.rules
        for checkpoint in _selected(tensor, rule, policy)
        if checkpoint < len(tensor.checkpoints)
        for protocol in protocols_of(rule, tensor.merged.benchmarks)
    ]
    found = [_measured(evidence, policy, *task) for task in tasks]
    results = decided(tasks, found, [each.label for each in tensor.checkpoints], policy)
    results += [
        unmeasured(rule, protocol, each.label, f"it {each.why}")
        for rule in policy.rules
        for number, each in enumerate(tensor.merged.diverged, len(tensor.checkpoints))
        if number in _selected(tensor, rule, policy)
        for protocol in protocols_of(rule, tensor.merged.benchmarks)
    ]
    if not results:
        labels = [entry.label for entry in tensor.checkpoints]
        results = without_student("run", labels, policy, tensor.merged.benchmarks)
    warnings = tensor.warnings
    measured = measured_benchmarks(tensor)
    if measured and any(result.outcome == UNMEASURED for result in results):
        names = " ".join(measured)
        warnings = (*warnings, f"The run is not finished. To gate what it has: --benchmark {names}")
    return verdict_of(results, policy, warnings)


def decided(
    tasks: Sequence[Task], found: Sequence[Measurement | NotMeasured], labels: Sequence[str], policy: Policy
) -> list[RuleResult]:
    """Decide all rules together.

    Args:
        tasks: what each measurement is of.
        found: one for each task. The runs of one recipe share a measurement, which is one test.
        labels: of the checkpoints.
        policy: its confidence.
    """
    tests: dict[object, tuple[PolicyRule, Measurement]] = {}
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
        [rule.gain for rule, _ in tests.values()],
    )
    outcomes = dict(zip(tests, decisions, strict=True))
    return [
        _result(labels[task[2]], task, each, outcomes.get(key))
        for key, task, each in zip(keys, tasks, found, strict=True)
    ]


def _measured(
    evidence: Evidence, policy: Policy, rule: PolicyRule, protocol: str | None, checkpoint: int
) -> Measurement | NotMeasured:
    excluded = too_many_excluded(evidence, rule, protocol, checkpoint, policy.max_excluded)
    return excluded or rule.kind.measure(evidence, rule, protocol, checkpoint)


def _selected(tensor: ResultTensor, rule: PolicyRule, policy: Policy) -> list[int]:
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


def protocols_of(rule: PolicyRule, benchmarks: Iterable[Benchmark]) -> list[str | None]:
    """Protocols under which a rule is evaluated; [None] for a metric of both or none."""
    if rule.kind.protocols != "each":
        return [None]
    if rule.protocol is not None:
        return [rule.protocol]
    planned = [
        name
        for benchmark in benchmarks
        if rule.benchmark in (None, benchmark.name) and rule.category in (None, benchmark.category)
        for name, plan in benchmark.protocols.items()
        if plan.direction == "higher"
    ]
    return list(dict.fromkeys(planned)) or ["loglikelihood"]


def _result(
    label: str,
    task: Task,
    found: Measurement | NotMeasured,
    decision: Decision | None,
) -> RuleResult:
    rule, protocol, _ = task
    if isinstance(found, NotMeasured) or decision is None:
        return unmeasured(rule, protocol, label, found.why if isinstance(found, NotMeasured) else "")
    return replace(
        unmeasured(rule, protocol, label, ""),
        outcome=decision.outcome,
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


def unmeasured(rule: PolicyRule, protocol: str | None, checkpoint: str, why: str) -> RuleResult:
    """The result of a rule that could not be measured."""
    return RuleResult(
        name=rule.title(protocol),
        checkpoint=checkpoint,
        metric=rule.metric,
        protocol=protocol,
        outcome=UNMEASURED,
        threshold=rule.threshold,
        at_least=rule.kind.bound == "min",
        gain=rule.gain,
        unit=rule.kind.unit,
        why=why,
    )


def without_student(
    what: str, labels: Sequence[str], policy: Policy, benchmarks: Sequence[Benchmark]
) -> list[RuleResult]:
    """A result for every rule where there is no student; `what` has none, but the checkpoints `labels`."""
    why = f"the {what} has no student, only {', '.join(labels)}"
    return [
        unmeasured(rule, protocol, "(no student)", why)
        for rule in policy.rules
        for protocol in protocols_of(rule, benchmarks)
    ]


def verdict_of(results: Sequence[RuleResult], policy: Policy, warnings: tuple[str, ...]) -> Verdict:
    """The verdict over all results."""
    if {result.protocol for result in results} == {"loglikelihood"}:
        warnings = (*warnings, ONLY_LOGLIKELIHOOD)
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
    return Verdict(
        tuple(results), code, undecided if code == 0 else 0, warnings, policy.name, policy.identity
    )

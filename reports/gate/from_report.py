"""The gate on a report: rules decided on the intervals of report.json, without the documents of the runs.

The policy of `compare --policy` was decided on the documents: the report holds its verdict. Of others, the
ends of 95 % intervals are those of the report; p-values and other levels take normal tails through them.
A rule that needs documents is not measured, and says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.foundation import DataError, counted, read_json
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES
from evalsuite.foundation.typed import from_json
from evalsuite.reports.analysis.scopes import weights_of
from evalsuite.reports.exports.report_json import SCHEMA
from evalsuite.reports.gate.outputs import verdict_from_json
from evalsuite.reports.gate.policy import Policy, PolicyRule
from evalsuite.reports.gate.run import Task, decided, protocols_of, publish, verdict_of, without_student
from evalsuite.reports.gate.verdict import Verdict
from evalsuite.reports.measures.recovery import PROOF
from evalsuite.reports.records.names import Name, find
from evalsuite.reports.rules.measurement import KEPT, Measurement, NotMeasured
from evalsuite.reports.run import REPORT, Benchmark
from evalsuite.reports.statistics.contrasts import Contrast
from evalsuite.reports.statistics.intervals import normal_quantile

_DRAWS = 4001
_QUANTITIES = frozenset(
    (
        "recovery",
        "capped_recovery",
        "chance_normalized_recovery",
        "score",
        "drop",
        "agreement",
        "retained",
        "gap",
    )
)
"""Metrics of rules that have an interval of the same name in a row of the report."""


def gate_report(
    path: Path, policy: Policy, *, checkpoints: Sequence[str] = (), out: Path | None = None
) -> Verdict:
    """Apply a policy to a report. Writes files and the job's summary as `run_gate` does.

    A report that was written with this policy holds its verdict, which the documents of the runs decided.

    Args:
        path: report.json.
        policy: the rules.
        checkpoints: names of the only students.
        out: folder for junit.xml, gate.md and gate.json.

    Raises:
        DataError: the file is no report, or one of another version.
        ConfigError: the policy names a checkpoint that the report lacks.
    """
    values = read_json(path)
    if not isinstance(values, Mapping) or "averages" not in values:
        raise DataError(f"{path}: not a report of `evalsuite compare`")
    if values.get("schema") != SCHEMA:
        raise DataError(
            f"{path}: schema {values.get('schema')!r}, expected {SCHEMA}; write the report again with "
            "`evalsuite compare`"
        )
    try:
        held = values.get("gate")
        if held is not None and not checkpoints and held.get("policy", {}).get("id") == policy.identity:
            verdict = verdict_from_json(held, str(path))
        else:
            verdict = _verdict(_Report(values), policy, checkpoints)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: a damaged report ({type(error).__name__}: {error})") from error
    return publish(verdict, out)


@dataclass(frozen=True, slots=True)
class _Report:
    """report.json with its rows."""

    values: Mapping[str, Any]

    @property
    def labels(self) -> list[str]:
        """Labels of the checkpoints."""
        return [each["label"] for each in self.values["checkpoints"]]

    def rows(self, table: str, **keys: object) -> list[Mapping[str, Any]]:
        """The rows of a list that have these values."""
        return [
            row for row in self.values[table] if all(row.get(name) == value for name, value in keys.items())
        ]

    def benchmark(self, name: str) -> Benchmark:
        """A benchmark of the plan."""
        (found,) = self.rows("benchmarks", name=name)
        protocols = {
            protocol: how | {"documents": _by_context(how["documents"])}
            for protocol, how in found["protocols"].items()
        }
        return from_json({**found, "protocols": protocols}, Benchmark, REPORT)


def _by_context(documents: Any) -> Any:
    return (
        {int(context): number for context, number in documents.items()}
        if isinstance(documents, Mapping)
        else documents
    )


def _verdict(report: _Report, policy: Policy, only: Sequence[str]) -> Verdict:
    entries = report.values["checkpoints"]
    named = [
        Name(each["label"], (each["weights_id"], *each.get("fingerprints", ())), (each.get("path", ""),))
        for each in entries
    ]
    teachers = {each["teacher"] for each in entries} | {
        i for i, each in enumerate(entries) if each["role"] == "teacher"
    }
    students = [i for i in range(len(entries)) if i not in teachers]
    benchmarks = [report.benchmark(each["name"]) for each in report.values["benchmarks"]]
    tasks: list[Task] = []
    for rule in policy.rules:
        names = rule.checkpoints or only or policy.checkpoints
        chosen = list(dict.fromkeys(find(name, named, "policy") for name in names)) if names else students
        tasks += [(rule, protocol, who) for who in chosen for protocol in protocols_of(rule, benchmarks)]
    found = [_measured(report, policy, *task) for task in tasks]
    results = decided(tasks, found, report.labels, policy)
    if not results:
        results = without_student("report", report.labels, policy, benchmarks)
    notice = (
        "Decided on the intervals of a report, without its runs: p-values take normal tails through them, "
        "and no documents are named."
    )
    return verdict_of(results, policy, (notice, *report.values["warnings"]))


def _measured(
    report: _Report, policy: Policy, rule: PolicyRule, protocol: str | None, checkpoint: int
) -> Measurement | NotMeasured:
    if why := _needs_runs(report, policy, rule):
        return NotMeasured(f"a report does not hold what decides it: {why}; gate the run")
    if rule.kind.protocols != "both" and (why := _incomplete(report, rule, protocol, checkpoint)):
        return NotMeasured(why)
    row = _row(report, rule, protocol, checkpoint)
    if isinstance(row, NotMeasured):
        return row
    if missing := row.get("missing"):
        return NotMeasured(f"the report lacks {', '.join(missing)} for '{report.labels[checkpoint]}'")
    found = row[rule.metric]
    if found is None or "undefined" in found:
        note = None if found is None else report.values["notes"][found["undefined"]]
        return NotMeasured(f"{rule.metric} is undefined: {note or 'the report has no interval of it'}")
    if found["low"] is None or found["high"] is None:
        return NotMeasured(f"the interval of its {rule.metric} has no end in the report")
    contrast = _contrast(found)
    measured = Measurement(
        contrast.scaled(100) if rule.kind.unit == "points" else contrast, int(row["documents"]), ()
    )
    if rule.metric in ("recovery", "capped_recovery", "drop", "chance_normalized_recovery"):
        return _beyond_chance(report, rule, protocol, checkpoint, row, measured)
    return measured


def _needs_runs(report: _Report, policy: Policy, rule: PolicyRule) -> str:
    """What of the runs a rule needs; empty if a report has all of it."""
    if rule.metric not in _QUANTITIES:
        return f"{rule.metric} needs documents or measurements of the runs"
    if policy.benchmarks:
        return "averages of the policy's 'benchmarks' need documents"
    if policy.errors == "exclude" or policy.min_coverage is not None or policy.unread_contexts == "missing":
        return "'errors', 'min_coverage' and 'unread_contexts' select documents"
    over = rule.over or policy.over
    if over == "runs" or (
        over is None and rule.kind.over_runs and (policy.run_spread or report.values["replicates"])
    ):
        return "decisions over training runs need documents ('over: documents' decides on the checkpoint)"
    return ""


def _incomplete(report: _Report, rule: PolicyRule, protocol: str | None, checkpoint: int) -> str:
    """Which planned cells of a rule the checkpoint or its teacher lacks."""
    who = {checkpoint, report.values["checkpoints"][checkpoint]["teacher"]}
    categories = {each["name"]: each["category"] for each in report.values["benchmarks"]}
    lacking = [
        f"{each['benchmark']}: '{report.labels[each['checkpoint']]}' has {each['documents']:,} of "
        f"{counted(each['planned'], 'document')}"
        for each in report.rows("incomplete", protocol=protocol)
        if each["checkpoint"] in who
        and rule.benchmark in (None, each["benchmark"])
        and rule.category in (None, categories.get(each["benchmark"]))
        and rule.context in (None, each["context"])
    ]
    return "; ".join(lacking[:10])


def _row(
    report: _Report, rule: PolicyRule, protocol: str | None, checkpoint: int
) -> Mapping[str, Any] | NotMeasured:
    """The row of the report that a rule is about."""
    scope = rule.category or ("informative" if rule.is_informative else "all")
    if rule.metric == "gap":
        if rule.category is not None:
            return NotMeasured("a report has gaps of benchmarks and of their average, not of categories")
        rows = report.rows("gaps", checkpoint=checkpoint, benchmark=rule.benchmark or "all")
    elif rule.benchmark is not None:
        table = "agreements_by_benchmark" if rule.metric in ("agreement", "retained") else "scores"
        key = "scope" if table == "agreements_by_benchmark" else "benchmark"
        rows = report.rows(table, checkpoint=checkpoint, protocol=protocol, **{key: rule.benchmark})
        rows = [row for row in rows if rule.metric in row]
    else:
        table = "agreements" if rule.metric in ("agreement", "retained") else "averages"
        rows = report.rows(table, checkpoint=checkpoint, protocol=protocol, scope=scope)
    if rule.context is not None:
        rows = [row for row in rows if row.get("context") == rule.context]
    what = rule.benchmark or f"average of scope '{scope}'"
    place = f" under {PROTOCOL_TITLES[protocol]}" if protocol in PROTOCOL_TITLES else ""
    if not rows:
        return NotMeasured(f"the report has no {rule.metric} of the {what}{place}")
    if len(rows) > 1:
        return NotMeasured(f"the report has {len(rows)} contexts of {what}{place}: state one as 'context'")
    return rows[0]


def _contrast(interval: Mapping[str, float]) -> Contrast:
    """Draws of a distribution whose central 95 % are the interval: a normal tail through either end."""
    z = normal_quantile(0.975)
    below, above = ((interval["point"] - interval["low"]) / z, (interval["high"] - interval["point"]) / z)
    # Quantiles at which the draws are read: the ends of the interval are those of the report.
    shares = np.clip(np.arange(_DRAWS) / (_DRAWS - 1), 0.5 / _DRAWS, 1 - 0.5 / _DRAWS)
    deviates = np.array([normal_quantile(float(share)) for share in shares])
    draws = interval["point"] + np.where(deviates < 0, below, above) * deviates
    return Contrast(float(interval["point"]), draws, 1e9, ((below + above) / 2) ** 2)


def _beyond_chance(
    report: _Report,
    rule: PolicyRule,
    protocol: str | None,
    checkpoint: int,
    row: Mapping[str, Any],
    measured: Measurement,
) -> Measurement | NotMeasured:
    """The measurement, unless the teacher's lead over chance, or the share of it that is kept, is not proven.

    Guesses reach a ratio of scores, but no lead; see `measures.recovery`. A rule that misses its threshold
    anyway needs no such proof.
    """
    names = row.get("benchmarks") or [rule.benchmark]
    plans = [report.benchmark(name) for name in names]
    if any(plan.chance is None for plan in plans):
        return measured
    teacher = report.values["checkpoints"][checkpoint]["teacher"]
    leads = [
        each["lead"]
        for name in names
        for each in report.rows("informative", teacher=teacher, protocol=protocol, benchmark=name)
    ]
    if len(leads) != len(names) or any("undefined" in lead or lead["low"] is None for lead in leads):
        return NotMeasured("the report does not state the teacher's lead over chance on every benchmark")
    weights = weights_of([_Part(plan, None) for plan in plans])
    z = normal_quantile(0.975)
    lead = sum(weight * each["point"] for weight, each in zip(weights, leads, strict=True))
    error = sqrt(
        sum((w * (each["point"] - each["low"]) / z) ** 2 for w, each in zip(weights, leads, strict=True))
    )
    if lead <= normal_quantile(0.5 + PROOF / 2) * error:
        return NotMeasured(
            f"the teacher's lead over chance of {100 * lead:.1f} points could be luck (p > "
            f"{(1 - PROOF) / 2:g})"
        )
    kept = row["chance_normalized_recovery"]
    least = KEPT if rule.kind.bound == "max" else min(rule.threshold, KEPT)
    low = None if kept is None or "undefined" in kept else kept["low"]
    sign = 1 if rule.kind.bound == "min" else -1
    is_met = measured.margin(rule.threshold).scaled(sign).quantile(0.025) >= 0
    if is_met and (low is None or low < least):
        return NotMeasured(
            f"it is not proven to keep {100 * least:g} % of the teacher's lead over chance, which the rule "
            "demands; gate the run"
        )
    return measured


@dataclass(frozen=True, slots=True)
class _Part:
    """A benchmark of an average."""

    benchmark: Benchmark
    context: int | None

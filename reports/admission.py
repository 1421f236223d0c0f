"""Admission: the benchmarks that a teacher can do under both protocols, so that a student can lose it.

The rule is fixed before students are trained. It compares the teacher with the best constant answer, which a
model that has learned the form of a benchmark and nothing else can give: the one answer that scores most on
the same documents. `decide` is pure: score rows in, decisions out; `admit` decides on a run folder, and
`write_admission` writes the decisions as CSV and Markdown.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from evalsuite.foundation import ConfigError, DataError, write_csv, write_text
from evalsuite.foundation.strict import Strict, parse
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.taxonomy import PERPLEXITIES, PROTOCOL_TITLES, PROTOCOLS, names_answer
from evalsuite.foundation.words import english_words, f1_of_words
from evalsuite.reports.analysis.bootstrap_sample import ResampledStratum
from evalsuite.reports.markdown import table
from evalsuite.reports.records.names import Name, find
from evalsuite.reports.records.score_files import read_rows, score_paths
from evalsuite.reports.run import Checkpoint, Manifest, read_manifest
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.intervals import Interval

COLUMNS = (
    "benchmark",
    "protocol",
    "documents",
    "score",
    "best_constant",
    "lead",
    "lead_low",
    "lead_high",
    "named",
    "admitted",
    "why",
)
MAX_CANDIDATES = 200
"""Constant answers that are tried: the most frequent right ones."""

Row = Mapping[str, Any]


class AdmissionRule(Strict):
    """What a benchmark needs, under every protocol on the same documents."""

    min_documents: int = Field(default=500, ge=2)
    """Documents that both protocols have."""
    min_points: float = Field(default=10.0, ge=0)
    """The teacher's lead over the best constant answer, in points; its 95 % interval must also be above 0."""
    min_named: float = Field(default=0.9, ge=0, le=1)
    """Share of the documents on which the teacher names an answer."""


def load_rule(path: Path | None) -> AdmissionRule:
    """Read a rule from YAML; None: the default. Raises ConfigError that names file and key."""
    return AdmissionRule() if path is None else parse(read_yaml(path), AdmissionRule, str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolAdmission:
    """One benchmark under one protocol. Scores and shares are fractions of the common documents."""

    protocol: str
    documents: int
    score: float
    constant: float
    """Score of the best constant answer, or of guessing if that is more."""
    lead: Interval
    named: float
    why: str
    """Why the benchmark is not admitted; empty if nothing under this protocol stands against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """Whether a benchmark is admitted; without enough scores, no protocol is measured."""

    benchmark: str
    title: str
    protocols: tuple[ProtocolAdmission, ...]
    why: str

    @property
    def is_admitted(self) -> bool:
        """Whether the benchmark is admitted."""
        return not self.why


def decide(
    benchmark: str,
    title: str,
    rows: Mapping[str, Sequence[Row]],
    metrics: Mapping[str, str],
    rule: AdmissionRule,
) -> AdmissionDecision:
    """Apply the rule to the score rows of one teacher on one benchmark.

    Args:
        benchmark: its name.
        title: its name in tables.
        rows: protocol → score rows as mappings of the fields of `ScoreRow`.
        metrics: protocol → its main metric.
        rule: the rule.
    """

    def refused(why: str) -> AdmissionDecision:
        return AdmissionDecision(benchmark=benchmark, title=title, protocols=(), why=why)

    missing = [PROTOCOL_TITLES[name] for name in PROTOCOLS if not rows.get(name)]
    if missing:
        return refused(f"no scores under {' and '.join(missing)}")
    common = set.intersection(*({row["doc_id"] for row in rows[name]} for name in PROTOCOLS))
    if len(common) < rule.min_documents:
        return refused(
            f"{len(common):,} documents have both protocols (at least {rule.min_documents:,} needed)"
        )
    if lower := [name for name in PROTOCOLS if metrics[name] in PERPLEXITIES]:
        return refused(
            f"its metric under {PROTOCOL_TITLES[lower[0]]} is a perplexity, which no answer can have"
        )
    by_document = {name: _by_document(rows[name], common) for name in PROTOCOLS}
    right = {doc_id: _texts(found[0]) for doc_id, found in by_document["generation"].items()}
    found = tuple(
        _protocol(benchmark, name, by_document[name], right, metrics[name], rule) for name in PROTOCOLS
    )
    reasons = [f"{PROTOCOL_TITLES[each.protocol]}: {each.why}" for each in found if each.why]
    return AdmissionDecision(benchmark=benchmark, title=title, protocols=found, why="; ".join(reasons))


def _by_document(rows: Sequence[Row], common: set[str]) -> dict[str, list[Row]]:
    """The rows of every common document, one for each sampling seed."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["doc_id"] in common:
            found.setdefault(row["doc_id"], []).append(row)
    return found


def _protocol(
    benchmark: str,
    protocol: str,
    by_document: Mapping[str, Sequence[Row]],
    right: Mapping[str, list[str]],
    metric: str,
    rule: AdmissionRule,
) -> ProtocolAdmission:
    """Measure one protocol. `right`: right answers of every document, as texts."""
    ids = sorted(by_document)
    first = [by_document[doc_id][0] for doc_id in ids]
    scores = np.array([np.mean([_value(row, metric) for row in by_document[doc_id]]) for doc_id in ids])
    chance = np.array([row["chance"] or 0.0 for row in first])
    # A document without choices has the same right answer under both protocols.
    targets = [_choices(row) or right[doc_id] for doc_id, row in zip(ids, first, strict=True)]
    if not all(targets):
        doc_id = ids[targets.index([])]
        raise DataError(
            f"{benchmark}: the score row of document {doc_id} under {PROTOCOL_TITLES[protocol]} has no "
            "right answer in its 'detail', which the best constant answer needs; repeat "
            "`evalsuite run --score-only`"
        )
    is_binary = bool(np.isin([_value(row, metric) for row in first], (0, 1)).all())
    constant = _best_constant(targets, is_binary=is_binary)
    if chance.mean() > constant.mean():
        constant = chance
    clusters = _clusters([row["cluster"] for row in first])
    stratum = Stratum(
        np.column_stack([scores, constant]),
        ("teacher", "constant"),
        f"admission {benchmark} {protocol}",
        clusters,
    )
    lead = ResampledStratum(stratum).bootstrap({0: 1.0, 1: -1.0}).interval(method="paired bootstrap")
    named = 1.0
    if protocol == "generation":
        named = float(np.mean([np.mean([_names(row) for row in by_document[doc_id]]) for doc_id in ids]))
    return ProtocolAdmission(
        protocol=protocol,
        documents=len(ids),
        score=float(scores.mean()),
        constant=float(constant.mean()),
        lead=lead,
        named=named,
        why=_why(lead, named, float(constant.mean()), rule),
    )


def _why(lead: Interval, named: float, constant: float, rule: AdmissionRule) -> str:
    what = f"the best constant answer ({100 * constant:.1f} %)"
    if lead.low <= 0:
        return (
            f"the teacher is not above {what} by its interval: {100 * lead.point:.1f} points "
            f"({100 * lead.low:.1f} to {100 * lead.high:.1f})"
        )
    # Shares of documents are multiples of 1/n; rounding errors must not decide at the threshold.
    if round(100 * lead.point, 9) < rule.min_points:
        return (
            f"the teacher is {100 * lead.point:.1f} points above {what} (at least {rule.min_points:g} needed)"
        )
    if round(named, 9) < rule.min_named:
        return (
            f"the teacher names an answer on {100 * named:.1f} % of the documents "
            f"(at least {100 * rule.min_named:g} % needed)"
        )
    return ""


def _best_constant(targets: Sequence[Sequence[str]], *, is_binary: bool) -> np.ndarray:
    """Scores of the constant answer that scores most. [documents]

    Args:
        targets: right answers of every document.
        is_binary: an answer is right if it is one of them; otherwise it scores the F1 over words.
    """
    counts = Counter(target for each in targets for target in set(each))
    best = np.zeros(len(targets))
    for candidate, _ in counts.most_common(MAX_CANDIDATES):
        if is_binary:
            scores = np.array([float(candidate in each) for each in targets])
        else:
            words = candidate.split()
            scores = np.array(
                [
                    max((f1_of_words(words, target.split()) for target in each), default=0.0)
                    for each in targets
                ]
            )
        if scores.mean() > best.mean():
            best = scores
    return best


def _choices(row: Row) -> list[str]:
    """Indices of the right choices under log-likelihood; empty for a row without choices, or with one."""
    gold = row["detail"].get("gold")
    if len(row["detail"].get("logprobs", ())) == 1:
        return []
    return [] if gold is None else [str(each) for each in (gold if isinstance(gold, list) else [gold])]


def _texts(row: Row) -> list[str]:
    """Right answers under generation, without case, punctuation and articles; empty if they are unknown."""
    target = row["detail"].get("target", [])
    texts = target.split(" | ") if isinstance(target, str) else map(str, target)
    return [" ".join(english_words(text)) or text for text in texts]


def _value(row: Row, metric: str) -> float:
    """The score; a response that is an error counts as wrong."""
    return 0.0 if row["outcome"] == "error" else float(row["values"][metric])


def _names(row: Row) -> bool:
    return names_answer(row["outcome"]) and bool(row["detail"].get("extracted"))


def _clusters(names: Sequence[str | None]) -> np.ndarray | None:
    if any(name is None for name in names):
        return None
    return np.unique(np.array(names), return_inverse=True)[1]


def admit(
    run: Path, teacher: str | None, rule: AdmissionRule, names: Collection[str] | None = None
) -> list[AdmissionDecision]:
    """Decide on the benchmarks of a run, in the order of its plan.

    Args:
        run: the run folder.
        teacher: label, weights_id or path of the checkpoint that the rule is applied to; None: the plan's
            teacher.
        rule: the rule.
        names: of the benchmarks; None: all.

    Raises:
        ConfigError: the run has no such checkpoint, or none or several with the role of a teacher.
        DataError: score rows of several fingerprints, or rows without the right answers.
    """
    plan = read_manifest(run)
    checkpoint = find_checkpoint(plan, teacher, run)
    decisions = []
    for benchmark in plan.benchmarks:
        if names is not None and benchmark.name not in names:
            continue
        rows = {name: _rows(run, benchmark.name, name, checkpoint) for name in benchmark.protocols}
        metrics = {name: how.metric for name, how in benchmark.protocols.items()}
        decisions.append(decide(benchmark.name, benchmark.title, rows, metrics, rule))  # type: ignore[arg-type]
    return decisions


def find_checkpoint(plan: Manifest, name: str | None, run: Path) -> Checkpoint:
    """The checkpoint of a run by its name; None: its teacher. Raises ConfigError as `admit`."""
    if name is None:
        found = [each for each in plan.checkpoints if each.role == "teacher"]
        if len(found) != 1:
            raise ConfigError(f"{run}: has {len(found)} teachers; name one checkpoint with --teacher")
        return found[0]
    known = [Name(each.label, (each.weights_id,), (each.path,)) for each in plan.checkpoints]
    return plan.checkpoints[find(name, known, f"--teacher, {run}")]


def _rows(run: Path, benchmark: str, protocol: str, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    rows = [
        row
        for path in score_paths(run, benchmark, protocol)
        for row in read_rows(path).values()
        if row["weights_id"] == checkpoint.weights_id
        and (not checkpoint.fingerprints or row["fingerprint"] in checkpoint.fingerprints)
    ]
    if len(prints := sorted({row["fingerprint"] for row in rows})) > 1:
        raise DataError(
            f"{run}: '{checkpoint.label}' was evaluated on {benchmark} with several engines, dtypes or "
            f"package versions ({', '.join(prints)}); keep the score files of one"
        )
    return rows


def write_admission(decisions: Sequence[AdmissionDecision], rule: AdmissionRule, out: Path) -> list[Path]:
    """Write admission.csv and admission.md, which contain no text of documents, and return their paths."""
    write_csv(out / "admission.csv", COLUMNS, _cells(decisions))
    write_text(out / "admission.md", markdown(decisions, rule))
    return [out / "admission.csv", out / "admission.md"]


def _cells(decisions: Sequence[AdmissionDecision]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for each in decisions:
        if not each.protocols:
            rows.append([each.benchmark, "", "", "", "", "", "", "", "", False, each.why])
        for part in each.protocols:
            numbers = (part.score, part.constant, part.lead.point, part.lead.low, part.lead.high, part.named)
            shown = [f"{number:.4f}" for number in numbers]
            rows.append([each.benchmark, part.protocol, part.documents, *shown, each.is_admitted, part.why])
    return rows


def markdown(decisions: Sequence[AdmissionDecision], rule: AdmissionRule) -> str:
    """Format the decisions as one table, under a sentence that states the rule."""
    rows = []
    for each in decisions:
        verdict = "admitted" if each.is_admitted else each.why
        if not each.protocols:
            rows.append([each.title, "", "", "", "", "", "", verdict])
        for part in each.protocols:
            lead = f"{100 * part.lead.point:.1f} ({100 * part.lead.low:.1f} to {100 * part.lead.high:.1f})"
            shares = [f"{100 * share:.1f}" for share in (part.score, part.constant)]
            named = f"{100 * part.named:.1f}"
            row = [each.title, PROTOCOL_TITLES[part.protocol], f"{part.documents:,}", *shares, lead, named]
            rows.append([*row, verdict])
            verdict = ""
    admitted = sum(each.is_admitted for each in decisions)
    header = [
        "benchmark",
        "protocol",
        "documents",
        "teacher",
        "best constant",
        "lead (95 %)",
        "named",
        "decision",
    ]
    return (
        f"{admitted} of {len(decisions)} benchmarks are admitted: at least {rule.min_documents:,} documents "
        "with both protocols, and under each protocol a lead over the best constant answer that is positive "
        f"by its interval and at least {rule.min_points:g} points, with an answer named on at least "
        f"{100 * rule.min_named:g} % of the documents. Scores in per cent.\n\n{table(header, rows)}\n"
    )

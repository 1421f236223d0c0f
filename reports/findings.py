"""Findings of a report as sentences, shared by the page and Markdown."""

from collections.abc import Sequence
from math import sqrt

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.paper_comparison import PaperOrder
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.analysis.variants import Ablation
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.intervals import student_quantile

LISTED = 6
"""Students that a sentence lists in their order; of more, it names the first."""


def replicate_sentences(report: Report, protocol: str, scope: str | None = None) -> list[str]:
    """Describe the spread of recovery over training seeds; the pooled spread tells what is noise.

    Nothing if recoveries are compared over another `scope`.
    """
    groups = [
        group for group in report.replicates if group.protocol == protocol and scope in (None, group.scope)
    ]
    if not groups:
        return []
    which_benchmarks = "the informative" if groups[0].scope == INFORMATIVE else "all"
    how = f"{formatting.PROTOCOL_TITLES[protocol]}, over {which_benchmarks} benchmarks"
    degrees = sum(len(group.checkpoints) - 1 for group in groups)
    squares = sum((len(group.checkpoints) - 1) * group.deviation**2 for group in groups)
    least = sqrt(2 * squares / degrees) * student_quantile(degrees, 0.975)
    names = [", ".join(report.checkpoints[i].label for i in group.checkpoints) for group in groups]
    tie = (
        f"a difference between single runs of two recipes exceeds the noise of training from "
        f"{100 * least:.1f} points on (t, {degrees} degrees of freedom)."
    )
    if len(groups) == 1:
        (group,) = groups
        return [
            f"{len(group.checkpoints)} training runs that differ only in seed ({names[0]}) recover "
            f"{formatting.percent(group.mean)} % on average under {how}, with a standard deviation of "
            f"{100 * group.deviation:.2f} points: {tie}"
        ]
    each = [
        f"{formatting.percent(group.mean)} ± {100 * group.deviation:.2f} ({which})"
        for group, which in zip(groups, names, strict=True)
    ]
    return [
        f"Recovery of training runs that differ only in seed, in % ± standard deviation, under {how}: "
        f"{'; '.join(each)}. Pooled, {tie}"
    ]


def order_sentences(report: Report, order: PaperOrder) -> list[str]:
    """Describe how the order of the mixers agrees with the paper's, and which differences here are ties."""
    label = {checkpoint: report.checkpoints[checkpoint].label for checkpoint in order.checkpoints}
    count = len(order.checkpoints)
    pairs = count * (count - 1) // 2
    here = ", ".join(
        f"{label[s]} {formatting.percent(recovery)}"
        for s, recovery in zip(order.checkpoints, order.recoveries, strict=True)
    )
    first = f"Order of the {count} mixers here: {here}. "
    if order.tau is not None:
        first += f"Kendall τ with the paper's order is {formatting.plain(order.tau, 2)}"
        if order.interval is not None:
            over = order.interval.method.removeprefix("bootstrap ")
            first += f" (95 % interval {formatting.span(order.interval, 1, 2)} {over})"
        first += f": {len(order.inversions)} of {pairs} pairs are reversed"
        first += f" ({_pairs(label, order.inversions, ' above ')})." if order.inversions else "."
    sentences = [first]
    if order.deviation is None:
        tie = "Over documents alone (one run per recipe), these are not proven different: "
    else:
        tie = (
            f"Training runs that differ only in seed have a standard deviation of "
            f"{100 * order.deviation:.2f} points of this recovery ({order.degrees:g} degrees of freedom); "
            "over documents and runs, these are not proven different: "
        )
    sentences.append(tie + (f"{_pairs(label, order.ties, ' and ')}." if order.ties else "none."))
    return sentences


def _pairs(label: dict[int, str], pairs: tuple[tuple[int, int], ...], joint: str) -> str:
    return "; ".join(f"{label[first]}{joint}{label[second]}" for first, second in pairs)


def answered_all(report: Report, ablation: Ablation, row: AverageRow) -> bool:
    """Whether an average covers as many benchmarks as that of any variant, so that recoveries compare."""
    rows = [report.average(member.checkpoint, row.protocol) for member in ablation.members]
    return len(row.benchmarks) == max(len(other.benchmarks) for other in rows if other is not None)


def ablation_sentence(report: Report, ablation: Ablation) -> str:
    """Describe whether the protocols order the variants of a recipe alike."""
    if ablation.tau is None:
        text = "Differences are relative to the reference student, on the benchmarks that both have."
        rows = [report.average(m.checkpoint, protocol) for m in ablation.members for protocol in PROTOCOLS]
        if any(row is not None and not answered_all(report, ablation, row) for row in rows):
            text += " A dash marks a recovery over fewer benchmarks than the others'."
        return text
    return " ".join(
        filter(None, (_on_common_documents(report, ablation), _over_everything(report, ablation)))
    )


def repeat_sentences(report: Report, ablation: Ablation) -> list[str]:
    """Describe the difference between a variant and its reference over several training seeds."""
    sentences = []
    for member in ablation.members:
        parts = [
            f"{', '.join(formatting.signed(100 * each) for each in repeats.differences)} under "
            f"{formatting.PROTOCOL_TITLES[protocol]}, mean {formatting.signed(100 * repeats.mean.point)} "
            f"({formatting.span(repeats.mean)} over runs)"
            for protocol, repeats in member.repeats.items()
        ]
        if parts and member.partner is not None:
            seeds = ", ".join(map(str, next(iter(member.repeats.values())).seeds))
            who, other = (report.checkpoints[i].label for i in (member.checkpoint, member.partner))
            sentences.append(f"{who} − {other} with seeds {seeds}, in points: {'; '.join(parts)}.")
    return sentences


def _over_everything(report: Report, ablation: Ablation) -> str:
    """Describe the order by recovery over all benchmarks of each protocol."""
    rows = [[report.average(s, protocol) for s in ablation.both] for protocol in PROTOCOLS]
    points = [[row.recovery.point if row else None for row in each] for each in rows]
    first, second = ([p for p in each if p is not None] for each in points)
    if min(len(first), len(second)) < len(ablation.both):
        return ""
    tau = rank_agreement(first, second).tau
    if tau is None:
        return ""
    order = _orders(report, ablation, first, second)
    return f"By recovery over all benchmarks, {order} (τ {formatting.plain(tau, 2)})."


def _orders(report: Report, ablation: Ablation, first: Sequence[float], second: Sequence[float]) -> str:
    """Such as ``the order is a, b under log-likelihood and b, a under generation``."""
    number = len(ablation.both)
    what, shown = ("the order", number) if number <= LISTED else (f"the first of {number}", 1)
    one, other = (_in_order(report, ablation.both, scores, shown) for scores in (first, second))
    if one == other:
        return f"{what} is {one} under both protocols"
    return f"{what} is {one} under log-likelihood and {other} under generation"


def _in_order(report: Report, checkpoints: Sequence[int], scores: Sequence[float], shown: int) -> str:
    pairs = sorted(zip(scores, checkpoints, strict=True), key=lambda pair: -pair[0])
    return ", ".join(report.checkpoints[checkpoint].label for _, checkpoint in pairs[:shown])


def _on_common_documents(report: Report, ablation: Ablation) -> str:
    assert ablation.tau is not None
    first, second = ([_score(report, s, protocol) for s in ablation.both] for protocol in PROTOCOLS)
    order = _orders(report, ablation, first, second)
    tau = f"Kendall τ {formatting.plain(ablation.tau, 2)} over {len(ablation.both)}"
    return f"On documents evaluated under both protocols, {order} ({tau})."


def _score(report: Report, checkpoint: int, protocol: str) -> float:
    row = report.gap(checkpoint)
    assert row is not None  # `both` has only checkpoints with a gap row
    return (row.loglikelihood if protocol == "loglikelihood" else row.generation)["student"]

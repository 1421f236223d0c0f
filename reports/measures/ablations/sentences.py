"""What the variants of a recipe show, as sentences that the page and Markdown share."""

from collections.abc import Sequence

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.measures.ablations.variants import Ablation
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.agreement import rank_agreement

LISTED = 6
"""Students that a sentence lists in their order; of more, it names the first."""


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

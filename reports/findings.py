"""What a report found, in sentences that the page and Markdown share."""

from collections.abc import Sequence

from evalsuite.reports import words
from evalsuite.reports.analysis.published import TIE, PublishedOrder
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.variants import Variation
from evalsuite.reports.records import PROTOCOLS
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.kendall import rank_agreement


def replicate_sentences(report: Report, protocol: str) -> list[str]:
    """What training seeds do to a recovery; of several groups the widest says what is a tie."""
    groups = [group for group in report.replicates if group.protocol == protocol]
    if not groups:
        return []
    how = words.PROTOCOL_WORDS[protocol]
    widest = max(group.deviation for group in groups)
    names = [", ".join(report.subjects[i].label for i in group.subjects) for group in groups]
    tie = f"differences under {200 * widest:.1f} points between recipes are a tie."
    if len(groups) == 1:
        (group,) = groups
        return [
            f"{len(group.subjects)} training runs that differ by seed alone ({names[0]}) recover "
            f"{words.percent(group.mean)} % on average, with a standard deviation of {100 * widest:.2f} "
            f"points when {how}: {tie}"
        ]
    each = [
        f"{words.percent(group.mean)} ± {100 * group.deviation:.2f} ({which})"
        for group, which in zip(groups, names, strict=True)
    ]
    return [
        "Training runs that differ by seed alone recover, in per cent with their standard deviation when "
        f"{how}: {'; '.join(each)}. By the largest, {tie}"
    ]


def order_sentences(report: Report, order: PublishedOrder) -> list[str]:
    """Does the order of the mixers agree with the paper's, and which of ours are ties?"""
    label = {subject: report.subjects[subject].label for subject in order.subjects}
    count = len(order.subjects)
    pairs = count * (count - 1) // 2
    here = ", ".join(
        f"{label[s]} {words.percent(p)}" for s, p in zip(order.subjects, order.ours, strict=True)
    )
    said = f"Order of the {count} mixers here: {here}. "
    if order.tau is not None:
        said += f"Kendall τ with the paper's order is {words.plain(order.tau, 2)}"
        if order.interval is not None:
            said += f" (95 % interval {words.span(order.interval, 1, 2)} over resampled documents)"
        said += f": {len(order.inversions)} of {pairs} pairs are the other way round"
        said += f" ({_pairs(label, order.inversions, ' above ')})." if order.inversions else "."
    sentences = [said]
    if order.deviation is not None:
        tie = (
            f"{order.runs} training runs that differ by seed alone have a standard deviation of "
            f"{100 * order.deviation:.2f} points of this recovery"
            + (" (two runs tell its size only roughly)" if order.runs == 2 else "")
            + f"; differences under {TIE:g} of them, {100 * TIE * order.deviation:.2f} points, are ties: "
        )
        sentences.append(
            tie + (f"{_pairs(label, order.ties, ' and ')}." if order.ties else "there are none.")
        )
    return sentences


def _pairs(label: dict[int, str], pairs: tuple[tuple[int, int], ...], joint: str) -> str:
    return "; ".join(f"{label[first]}{joint}{label[second]}" for first, second in pairs)


def answered_all(report: Report, variation: Variation, row: AverageRow) -> bool:
    """Whether an average is over all that any of the variants answered, so that recoveries compare."""
    rows = [report.average(member.subject, row.protocol) for member in variation.members]
    return len(row.benchmarks) == max(len(other.benchmarks) for other in rows if other is not None)


def variation_sentence(report: Report, variation: Variation) -> str:
    """Do the protocols rank the variants of a recipe alike?"""
    if variation.tau is None:
        said = "Differences are from the student named beside, on everything that both answered."
        rows = [report.average(m.subject, protocol) for m in variation.members for protocol in PROTOCOLS]
        if any(row is not None and not answered_all(report, variation, row) for row in rows):
            said += " A dash stands for a recovery over fewer benchmarks than the others'."
        return said
    return " ".join(filter(None, (_both_ways(report, variation), _over_everything(report, variation))))


def repeat_sentences(report: Report, variation: Variation) -> list[str]:
    """What is left of a change when both sides are trained again with other seeds."""
    said = []
    for member in variation.members:
        parts = [
            f"{', '.join(words.signed(100 * each) for each in repeats.differences)} when "
            f"{words.PROTOCOL_WORDS[protocol]}, {words.signed(100 * repeats.mean.point)} in the mean "
            f"({words.span(repeats.mean)} over runs)"
            for protocol, repeats in member.repeats.items()
        ]
        if parts and member.partner is not None:
            seeds = ", ".join(map(str, next(iter(member.repeats.values())).seeds))
            who, other = (report.subjects[i].label for i in (member.subject, member.partner))
            said.append(f"{who} beside {other} with seeds {seeds}, in points: {'; '.join(parts)}.")
    return said


def _over_everything(report: Report, variation: Variation) -> str:
    """The order by recovery over all that was asked under either protocol."""
    rows = [[report.average(s, protocol) for s in variation.both] for protocol in PROTOCOLS]
    points = [[row.recovery.point if row else None for row in each] for each in rows]
    first, second = ([p for p in each if p is not None] for each in points)
    if min(len(first), len(second)) < len(variation.both):
        return ""
    tau = rank_agreement(first, second).tau
    if tau is None:
        return ""
    order = [_in_order(report, variation.both, each) for each in (first, second)]
    alike = "in the same order" if order[0] == order[1] else f"then {order[1]} when written"
    return (
        f"By recovery over everything that was asked it is {order[0]} when ranked, {alike} "
        f"(τ {words.plain(tau, 2)})."
    )


def _in_order(report: Report, subjects: Sequence[int], scores: Sequence[float]) -> str:
    pairs = sorted(zip(scores, subjects, strict=True), key=lambda pair: -pair[0])
    return ", ".join(report.subjects[subject].label for _, subject in pairs)


def _both_ways(report: Report, variation: Variation) -> str:
    assert variation.tau is not None
    ranked, written = ([_score(report, s, which) for s in variation.both] for which in PROTOCOLS)
    order = [_in_order(report, variation.both, scores) for scores in (ranked, written)]
    alike = "in the same order" if order[0] == order[1] else f"then {order[1]} when written"
    return (
        f"On the documents asked both ways the order is {order[0]} when ranked, {alike} "
        f"(Kendall τ {words.plain(variation.tau, 2)} over {len(variation.both)})."
    )


def _score(report: Report, subject: int, protocol: str) -> float:
    row = report.gap(subject)
    assert row is not None  # `both` holds those that have one
    return (row.ranked if protocol == "loglikelihood" else row.written)["student"]

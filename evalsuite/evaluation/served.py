"""The verdict of `evalsuite doctor` on another engine such as a server, and what it could have seen."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evalsuite.models.inference.settling import HALF_TOLERANCE, TOLERANCES
from evalsuite.reports.statistics.hypothesis_tests import mcnemar_mid_p
from evalsuite.reports.statistics.intervals import clopper_pearson

LEVEL = 0.95
"""Confidence of each bound, which is one-sided."""


@dataclass(frozen=True, slots=True)
class ServedVerdict:
    """Whether the served model is the evaluated one, as far as the documents tell.

    Args:
        status: `failed` if a response or continuation flips (`ServedPass`), else that of the largest
            difference of a log-probability (`Tolerance.status`).
        flips: way of running → share of documents that flip, for `doctor.json`.
        text: one sentence, with the power of an `ok`.
    """

    status: Literal["ok", "warning", "failed"]
    flips: Mapping[str, float]
    text: str


def served_verdict(passes: Sequence[Mapping[str, Any]], dtype: str) -> ServedVerdict:
    """Decide from the fields of `ServedPass`, in the order in which they were run.

    A sound server flips nothing: what rounding changes is no flip. One flip is therefore enough to fail, and
    a server that flips each of n responses with probability r is missed with probability (1 − r)ⁿ.
    """
    ran = [each for each in passes if not each["skipped"]]
    tolerance = TOLERANCES.get(dtype, HALF_TOLERANCE)
    flips = {each["name"]: len(each["flipped_texts"]) / each["num_documents"] for each in ran}
    flipping = [each for each in ran if each["flipped_texts"] or each["flipped_continuations"]]
    worst = max(ran, key=lambda each: each["max_difference"])
    difference = f"log-probabilities differ by up to {worst['max_difference']:.2g} nats ({worst['name']})"
    if flipping:
        names = ", ".join(each["name"] for each in flipping)
        text = f"the served model does not respond as the evaluated one: flips in {names}{_warm(ran)}"
        return ServedVerdict("failed", flips, text)
    status = tolerance.status(worst["max_difference"])
    if status != "ok":
        return ServedVerdict(status, flips, f"no response flips, but {difference}, not by rounding alone")
    documents = min(each["num_documents"] for each in ran)
    alone = "greedy responses alone are compared: " if any(each["unscored"] for each in ran) else ""
    text = (
        f"{alone}no difference from the evaluated model beyond rounding; a server that flips "
        f"{_seen(documents)} of responses or more in one of these ways would have been found "
        f"({100 * LEVEL:.0f} %)"
    )
    return ServedVerdict("ok", flips, text)


def format_served(served: Mapping[str, Any], dtype: str) -> str:
    """Text table of flips, distance and verdict, from `served` of `run_consistency_checks`."""
    return "\n".join(_lines(served, dtype))


def _lines(served: Mapping[str, Any], dtype: str) -> Iterator[str]:
    width = max(20, *(len(each["name"]) + 2 for each in served["passes"]))
    yield f"{'served':<{width}}{'responses flip':>20}{'continuations flip':>26}"
    for each in served["passes"]:
        if each["skipped"]:
            yield f"{each['name']:<{width}}  skipped: {each['skipped']}"
            continue
        texts = _share(len(each["flipped_texts"]), each["num_documents"])
        continuations = _share(len(each["flipped_continuations"]), each["num_continuations"])
        yield f"{each['name']:<{width}}{texts:>20}{continuations:>26}"
    found = served["divergence"]
    if found is None:
        yield f"{'KL, nats':<{width}}{'–':>20}"
    else:
        yield (
            f"{'KL, nats':<{width}}{'≥ ' + format(found['mean'], '.1e'):>20}  on average, ≥ "
            f"{found['largest']:.1e} at most, at {found['positions']:,} positions; the returned tokens hold "
            f"{100 * found['returned']:.1f} % of the probability"
        )
    yield f"Verdict: {served_verdict(served['passes'], dtype).text}."


def _share(flips: int, trials: int) -> str:
    """Flips of trials, and the bound of their rate: what it is at least, or at most if there are none."""
    interval = clopper_pearson(flips, trials, LEVEL)
    if interval is None:
        return "–"
    bound = f"> {100 * interval.low:.1f} %" if flips else f"< {100 * interval.high:.1f} %"
    return f"{flips}/{trials} ({bound})"


def _seen(documents: int) -> str:
    """The rate of flips that shows one among so many documents with probability LEVEL."""
    interval = clopper_pearson(0, documents, LEVEL)
    return "any share" if interval is None else f"{100 * interval.high:.1f} %"


def _warm(passes: Sequence[Mapping[str, Any]]) -> str:
    """How many documents flip with warm caches only, against those that flip with cold ones only."""
    cold, warm, *_ = (set(each["flipped_texts"]) for each in passes)
    if cold == warm:
        return ""
    only_warm, only_cold = len(warm - cold), len(cold - warm)
    return (
        f"; {only_warm} responses flip only when the caches are warm, {only_cold} only when they are cold "
        f"(McNemar's mid-p {mcnemar_mid_p(only_warm, only_cold):.2g})"
    )

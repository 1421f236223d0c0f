"""The gate's decisions on the page, line by line."""

from dataclasses import dataclass

from evalsuite.reports.gating.decide import INCONCLUSIVE, PASS, REGRESSION
from evalsuite.reports.gating.verdict import Decision, Verdict

KINDS = {PASS: "gain", REGRESSION: "loss", INCONCLUSIVE: "unsure"}


@dataclass(frozen=True, slots=True)
class GateLine:
    """One line of the policy for one checkpoint."""

    outcome: str
    kind: str
    label: str
    name: str
    demand: str
    point: str
    interval: str
    says: str
    look_at: tuple[str, ...]
    """`benchmark/document`"""


def gate_lines(verdict: Verdict | None) -> list[GateLine]:
    """One line per decision, in the order of the policy; none without a verdict."""
    return [] if verdict is None else [_line(decision) for decision in verdict.decisions]


def _line(decision: Decision) -> GateLine:
    point, _, interval = decision.found.partition(" (")
    return GateLine(
        outcome=decision.outcome,
        kind=KINDS.get(decision.outcome, "unsure"),
        label=decision.checkpoint,
        name=decision.name,
        demand=decision.demand,
        point=point,
        interval=interval.removesuffix(")"),
        says=decision.finding or "the whole interval is on the good side",
        look_at=decision.look_at,
    )

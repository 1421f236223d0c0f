"""Gate decisions, one table row each."""

from dataclasses import dataclass

from evalsuite.reports.gate.decide import INCONCLUSIVE, PASS, REGRESSION
from evalsuite.reports.gate.verdict import RuleResult, Verdict

KINDS = {PASS: "gain", REGRESSION: "loss", INCONCLUSIVE: "unsure"}


@dataclass(frozen=True, slots=True)
class GateLine:
    """One rule of the policy applied to one checkpoint."""

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
    """One line per decision, in the order of the policy; empty without a verdict."""
    return [] if verdict is None else [_row(result) for result in verdict.results]


def _row(result: RuleResult) -> GateLine:
    point, _, interval = result.measured.partition(" (")
    return GateLine(
        outcome=result.outcome,
        kind=KINDS.get(result.outcome, "unsure"),
        label=result.checkpoint,
        name=result.name,
        demand=result.requirement,
        point=point,
        interval=interval.removesuffix(")"),
        says=f"{result.finding or 'the entire interval meets the demand'}"
        f"{f'; over {result.over}' if result.over else ''}",
        look_at=result.look_at,
    )

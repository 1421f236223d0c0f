"""Score rows, statistics, leaderboards, the page, exports and the gate.

Nothing here imports torch: a report is rebuilt from score rows on any laptop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.reports.comparison import Comparison, compare
    from evalsuite.reports.gate.policy import Policy, load_policy, policy_from_options
    from evalsuite.reports.gate.run import run_gate
    from evalsuite.reports.gate.verdict import Verdict
    from evalsuite.reports.records.run_selection import RunSelection

_HOME = {
    "Comparison": "comparison",
    "compare": "comparison",
    "Policy": "gate.policy",
    "load_policy": "gate.policy",
    "policy_from_options": "gate.policy",
    "Verdict": "gate.verdict",
    "run_gate": "gate.run",
    "RunSelection": "records.run_selection",
}

__all__ = [
    "Comparison",
    "Policy",
    "RunSelection",
    "Verdict",
    "compare",
    "load_policy",
    "policy_from_options",
    "run_gate",
]


def __getattr__(name: str) -> Any:
    # Lazy: pandas and jinja take a second to import, which writing score rows must not cost.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

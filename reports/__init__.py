"""What is written down and what it means: records, statistics, leaderboards, the gate and the page.

Nothing here imports torch: a report is rebuilt from records on any laptop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.reports.comparison import Comparison, compare
    from evalsuite.reports.gating.policy import Policy, load_policy, policy_from_options
    from evalsuite.reports.gating.verdict import Verdict, gate

_HOME = {
    "Comparison": "comparison",
    "compare": "comparison",
    "Policy": "gating.policy",
    "load_policy": "gating.policy",
    "policy_from_options": "gating.policy",
    "Verdict": "gating.verdict",
    "gate": "gating.verdict",
}

__all__ = [
    "Comparison",
    "Policy",
    "Verdict",
    "compare",
    "gate",
    "load_policy",
    "policy_from_options",
]


def __getattr__(name: str) -> Any:
    # pandas and jinja take a second to import, which writing a record should not cost.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

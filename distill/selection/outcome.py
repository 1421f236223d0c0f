"""What a selector finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a search held at one point."""

    step: int
    """Optimizer steps so far; in a search by depth, layers decided."""
    tokens: int
    """Trained on so far, over all candidates."""
    layers: tuple[int, ...]
    """The set of the budget's size; in a search by depth, of that depth."""
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a selection took, besides the trunk."""

    student_tokens: int = 0
    """Trained on, over all candidates."""
    teacher_tokens: int = 0
    """Read by the teacher for these."""
    planned_tokens: int = 0
    """Student tokens if nothing had stopped early."""
    separate_student_tokens: int = 0
    """Student tokens of one run per layer, each with its own alignment and without early stop."""
    separate_teacher_tokens: int = 0
    trunk_tokens: int = 0
    """Of the all-linear student, which all selectors share."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The layers that stay softmax, and why."""

    layers: tuple[int, ...]
    scores: tuple[float, ...] = ()
    """Importance of each layer, higher is kept first; empty where layers were not rated one by one."""
    measure: str = ""
    """What a score is, with its unit."""
    history: tuple[Snapshot, ...] = ()
    stopped: bool = False
    """Whether the early-stop rule ended the search."""
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON; what else there is to know."""

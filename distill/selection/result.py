"""Result of a selector: layers, scores, search history and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalsuite.distill.selection.layer_sets import top_layers


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of a search at one point."""

    step: int
    """Optimizer steps so far; in a search by depth, number of decided layers."""
    tokens: int
    """Training tokens so far, over all candidates."""
    layers: tuple[int, ...]
    """The best set of K layers; in a search by depth, of that depth."""
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a selection, without the all-linear student."""

    student_tokens: int = 0
    """Training tokens over all candidates."""
    teacher_tokens: int = 0
    """Tokens that the teacher read for them."""
    tokens_without_early_stop: int = 0
    """Student tokens of the complete search."""
    tokens_without_sharing: int = 0
    """Student tokens of one complete run per layer, each with its own alignment; also the teacher's."""
    all_linear_tokens: int = 0
    """Training tokens of the all-linear student, which all selectors share."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SelectionResult:
    """The layers that stay softmax, with the measurements behind them."""

    layers: tuple[int, ...]
    heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Layer → heads that stay softmax in it."""
    head_scores: tuple[tuple[float, ...], ...] = ()
    """Importance per layer and head, of a selector of heads."""
    scores: tuple[float, ...] = ()
    """Importance per layer, higher first; empty for selectors that do not score single layers."""
    measure: str = ""
    """Description of `scores`, with unit."""
    history: tuple[Snapshot, ...] = ()
    stopped_early: bool | None = None
    """Whether the early-stop rule ended the search; None if its length is not planned in tokens."""
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further output of the selector (JSON)."""

    @classmethod
    def of_scores(
        cls, scores: Sequence[float], k: int, *, ties: Sequence[float] | None = None, **rest: Any
    ) -> "SelectionResult":
        """The K layers with the highest scores; `rest` are further fields."""
        return cls(layers=top_layers(scores, k, ties=ties), scores=tuple(scores), **rest)

    @classmethod
    def of_head_scores(cls, scores: Sequence[float], heads: int, k: int, **rest: Any) -> "SelectionResult":
        """The K heads with the highest scores, which are those of `heads` heads a layer; a layer with all of
        its heads is one of `layers`. `rest` are further fields."""
        chosen: dict[int, tuple[int, ...]] = {}
        for number in top_layers(scores, k):
            layer, head = divmod(number, heads)
            chosen[layer] = (*chosen.get(layer, ()), head)
        return cls(
            layers=tuple(layer for layer, own in chosen.items() if len(own) == heads),
            heads={layer: own for layer, own in chosen.items() if len(own) < heads},
            head_scores=tuple(tuple(scores[i : i + heads]) for i in range(0, len(scores), heads)),
            **rest,
        )

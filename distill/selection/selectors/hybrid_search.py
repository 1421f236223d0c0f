"""What searches over hybrids without training have in common: layers are restored, or become linear."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from evalsuite.distill.selection.result import Cost, SelectionResult, Snapshot
from evalsuite.distill.selection.selector import Requirement, Selector, Start

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.measured_sets import MeasuredSets

ALONE: Mapping[Start, str] = {
    "all-linear": "restoring this layer alone in the all-linear student",
    "teacher": "replacing this layer alone in the teacher",
}


class HybridSearch(Selector):
    """Search by a measurement of hybrids of teacher and all-linear student."""

    requires: ClassVar[Requirement] = "all_linear"
    start: ClassVar[Start] = "all-linear"
    """Where the search starts: attention is restored, or replaced."""
    criterion: ClassVar[str]
    """The column that it searches by."""
    lower_is_better: ClassVar[bool]

    @abstractmethod
    def hybrids(self, context: "SelectionContext") -> Mapping[Start, "MeasuredSets"]:
        """Measurements of the student that a search starts from, with attention swapped in some layers."""

    @abstractmethod
    def criterion_title(self) -> str:
        """What the criterion measures."""

    def start_layers(self, context: "SelectionContext") -> frozenset[int]:
        """The softmax layers that the search starts from."""
        return frozenset(range(0 if self.start == "all-linear" else context.layers))

    @property
    def _lowers(self) -> bool:
        """Whether a swap of an important layer lowers the criterion."""
        return (self.start == "all-linear") == self.lower_is_better

    def scores(self, context: "SelectionContext", measure: "MeasuredSets") -> tuple[float, ...]:
        """The change of the criterion by swapping each layer alone; higher stays softmax first."""
        start, sign = self.start_layers(context), -1.0 if self._lowers else 1.0
        baseline = measure(start)[self.criterion]
        return tuple(sign * (measure(start ^ {i})[self.criterion] - baseline) for i in range(context.layers))

    def search(self, context: "SelectionContext", k: int, width: int) -> SelectionResult:
        """Beam search over the hybrids, with `width` sets at each depth."""
        hybrids = self.hybrids(context)
        beam, history = hybrids[self.start].search(self.start_layers(context), k, width)
        return self.result(context, hybrids, beam, history)

    def result(
        self,
        context: "SelectionContext",
        hybrids: Mapping[Start, "MeasuredSets"],
        beam: Sequence[frozenset[int]],
        history: Sequence[Snapshot] = (),
    ) -> SelectionResult:
        """The best set of the beam, with the measurements of the sets behind it."""
        measure = hybrids[self.start]
        change = "reduction" if self._lowers else "increase"
        return SelectionResult(
            layers=tuple(sorted(beam[0])),
            scores=self.scores(context, measure),
            measure=f"{self.criterion_title()}: {change} from {ALONE[self.start]}",
            history=tuple(history),
            cost=Cost(all_linear_tokens=context.all_linear_tokens),
            details={
                "selected": measure(beam[0]),
                "beam": [measure(each) for each in beam],
                "all_linear": hybrids["all-linear"](()),
                "teacher": hybrids["teacher"](range(context.layers)),
                "path": [measure(each.layers) for each in history],
                "hybrids_measured": len(measure),
                "settings": measure.about,
            },
        )

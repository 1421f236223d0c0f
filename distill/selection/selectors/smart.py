"""`smart`: placement by the KL reduction of each restored layer, near-uniform and terminal-preserving."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.result import Cost, SelectionResult
from evalsuite.distill.selection.selector import KL_GUIDED, SELECTORS, Requirement, Selector

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext


def smart_layers(scores: Sequence[float], k: int) -> tuple[int, ...]:
    """Return the K layers that SMART selects, given each layer's sensitivity.

    KL-guided selection, section 4.2 (4), describes SMART (Zebra-Llama, arXiv 2505.17272) without a formula:
    "(i) score each layer by the reduction in teacher-student KL when swapping an global layer into an
    otherwise linear baseline; (ii) preserve high-score layers near input/output (so-called "terminal
    preservation"); (iii) choose the rest from near-uniform candidates to maximize total sensitivity". Open
    details are defined as follows. The terminal layers are the most sensitive of the first and of the last
    ⌊L/K⌋ layers. A placement is near-uniform if all gaps are ⌊g⌋ or ⌈g⌉ layers for the mean gap
    g = (last − first − K + 1)/(K − 1). Both sets published with that paper, {0, 9, 18, 26} and {0, 5, 10, 14,
    18, 22, 26} of 28 layers, are such placements (gaps of 8 and 7, and of 4 and 3). K = 1, which the paper
    does not cover, selects the most sensitive layer.
    """
    layers = len(scores)
    if k == 1:
        return top_layers(scores, 1)
    reach = layers // k
    first = top_layers(scores[:reach], 1)[0]
    last = layers - reach + top_layers(scores[layers - reach :], 1)[0]
    least, odd = divmod(last - first - k + 1, k - 1)
    steps = (least + 1, least + 2) if odd else (least + 1,)

    @cache
    def best(at: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Highest total from layer `at`, which is selected, to `last`, with `left` more to select."""
        if left == 0:
            return (scores[at], (at,)) if at == last else (float("-inf"), ())
        total, chosen = max(
            (best(at + step, left - 1) for step in steps if at + step <= last),
            key=lambda found: found[0],
            default=(float("-inf"), ()),
        )
        return scores[at] + total, (at, *chosen)

    return best(first, k - 1)[1]


@SELECTORS.register("smart")
class Smart(Selector):
    """KL reduction per restored layer, with terminal preservation and near-uniform spacing.

    The sensitivity is measured in the all-linear student, without further training.
    """

    source: ClassVar[str] = f"{KL_GUIDED}, section 4.2 (4); Zebra-Llama, arXiv 2505.17272"
    requires: ClassVar[Requirement] = "all_linear"

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        from evalsuite.distill.selection.hybrids import with_blocks_of

        linear = context.held_out.kl(context.all_linear)
        scores = []
        for layer in range(context.layers):
            hybrid = with_blocks_of(context.all_linear, context.teacher, [layer])
            scores.append(linear - context.held_out.kl(hybrid))
        return SelectionResult(
            layers=smart_layers(scores, k),
            scores=tuple(scores),
            measure="reduction of KL divergence by restoring this layer, nats per token, without training",
            cost=Cost(all_linear_tokens=context.all_linear_tokens),
            details={"all_linear_kl": linear},
        )

"""`smart`: sensitivity, with the ends of the network preserved and the rest nearly uniform."""

from collections.abc import Sequence
from functools import cache

from evalsuite.distill.selection.sets import top_layers


def smart_layers(scores: Sequence[float], k: int) -> tuple[int, ...]:
    """The K layers that SMART keeps, given each layer's sensitivity.

    (i) The sensitivity is the reduction in KL(teacher ‖ student) when that layer of an otherwise linear
    student is global attention; (ii) terminal preservation: the most sensitive of the first ⌊L/K⌋ layers
    and of the last ⌊L/K⌋ stay; (iii) the others are chosen among near-uniform placements, those with
    ⌊g⌋ or ⌈g⌉ layers between neighbours for g = (last − first − K + 1)/(K − 1), to maximise the total
    sensitivity (KL-guided selection, section 4.2 (4), after Zebra-Llama, arXiv 2505.17272). The sets
    published with the former, such as {0, 5, 10, 14, 18, 22, 26} of 28 layers, have these gaps.

    A single layer is the most sensitive one.
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
        """Highest total from layer `at`, which is kept, to `last`, with `left` more to keep."""
        if left == 0:
            return (scores[at], (at,)) if at == last else (float("-inf"), ())
        total, chosen = max(
            (best(at + step, left - 1) for step in steps if at + step <= last),
            key=lambda found: found[0],
            default=(float("-inf"), ()),
        )
        return scores[at] + total, (at, *chosen)

    return best(first, k - 1)[1]

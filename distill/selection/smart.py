"""`smart`: sensitivity, with the ends of the network preserved and the rest nearly uniform."""

from collections.abc import Sequence
from functools import cache

from evalsuite.distill.selection.sets import top_layers


def smart_layers(scores: Sequence[float], k: int) -> tuple[int, ...]:
    """The K layers that SMART keeps, given each layer's sensitivity.

    KL-guided selection, section 4.2 (4), describes SMART (Zebra-Llama, arXiv 2505.17272) without a formula:
    "(i) score each layer by the reduction in teacher-student KL when swapping an global layer into an
    otherwise linear baseline; (ii) preserve high-score layers near input/output (so-called "terminal
    preservation"); (iii) choose the rest from near-uniform candidates to maximize total sensitivity". What it
    leaves open is decided here: near means among the first and the last ⌊L/K⌋ layers, of which the most
    sensitive one each is kept; a placement is near-uniform if the layers between neighbours number ⌊g⌋ or
    ⌈g⌉ for g = (last − first − K + 1)/(K − 1), the mean number. Both sets published with that paper,
    {0, 9, 18, 26} and {0, 5, 10, 14, 18, 22, 26} of 28 layers, are placements of this kind (gaps of 8 and 7,
    and of 4 and 3).

    A single layer is the most sensitive one; the text says nothing of it.
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

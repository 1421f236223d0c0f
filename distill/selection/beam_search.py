"""`beam_add`, `beam_replace` and `greedy`: search by perplexity, without training."""

from collections.abc import Collection
from typing import Any

from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.one_swap.candidates import swap_mixers
from evalsuite.distill.selection.perplexity_search import HybridPerplexity
from evalsuite.distill.selection.result import Cost, SelectionResult, Snapshot

MEASURE = "mean perplexity over recall, knowledge and text"


def _hybrid_perplexity(context: SelectionContext, start: str) -> HybridPerplexity:
    """Perplexity of the student that a search starts from, with attention swapped in some layers.

    Args:
        start: `all-linear` (attention is restored) or `teacher` (attention is replaced).
    """
    # Distil the all-linear student in all processes before any of them measures alone.
    all_linear, all_softmax = context.all_linear, context.all_softmax

    def hybrid(softmax: Collection[int]) -> Any:
        if start == "all-linear":
            return swap_mixers(all_linear, all_softmax, softmax)
        return swap_mixers(all_softmax, all_linear, set(range(context.layers)) - set(softmax))

    return HybridPerplexity(context, hybrid, f"perplexity-{start}", {"mixer": context.mixer})


def beam_add(context: SelectionContext, k: int) -> SelectionResult:
    """Beam search from the all-linear student, restoring the attention of one layer at each depth.

    Each depth keeps the configurations with the lowest mean perplexity (arXiv 2603.26556, section 4.1.1 and
    Appendix D). The score of a layer is the perplexity reduction from restoring it alone.
    """
    all_layers = frozenset(range(context.layers))
    measure = _hybrid_perplexity(context, "all-linear")
    measure(frozenset())
    beam: list[frozenset[int]] = [frozenset()]
    history = []
    for depth in range(1, k + 1):
        candidates = sorted({each | {layer} for each in beam for layer in all_layers - each}, key=sorted)
        beam = measure.best(candidates, context.options.beam_width, f"depth {depth} of {k}")
        history.append(_snapshot(depth, beam[0]))
    baseline = measure(frozenset())
    scores = tuple(baseline - measure(frozenset([layer])) for layer in range(context.layers))
    description = f"{MEASURE}: reduction from restoring this layer alone in the all-linear student"
    return _result(context, measure, beam, history, scores, description)


def beam_replace(context: SelectionContext, k: int) -> SelectionResult:
    """Beam search from the teacher, replacing the attention of one layer at each depth.

    Each depth keeps the configurations with the lowest mean perplexity, until K softmax layers are left
    (arXiv 2603.26556, Appendix D). The score of a layer is the perplexity increase from replacing it alone.
    """
    all_layers = frozenset(range(context.layers))
    measure = _hybrid_perplexity(context, "teacher")
    baseline = measure(all_layers)
    beam: list[frozenset[int]] = [all_layers]
    history = []
    for depth in range(1, context.layers - k + 1):
        candidates = sorted({each - {layer} for each in beam for layer in each}, key=sorted)
        beam = measure.best(candidates, context.options.beam_width, f"depth {depth} of {context.layers - k}")
        history.append(_snapshot(depth, beam[0]))
    scores = tuple(measure(all_layers - {layer}) - baseline for layer in range(context.layers))
    description = f"{MEASURE}: increase from replacing this layer alone in the teacher"
    return _result(context, measure, beam, history, scores, description)


def greedy(context: SelectionContext, k: int) -> SelectionResult:
    """Select the K layers whose restoration alone lowers the mean perplexity most.

    "Selects top-k layers by individual perplexity impact" (arXiv 2603.26556, Appendix D).
    """
    measure = _hybrid_perplexity(context, "all-linear")
    single = [frozenset([layer]) for layer in range(context.layers)]
    measure.best(single, 1, "layers")
    baseline = measure(frozenset())
    scores = tuple(baseline - measure(each) for each in single)
    layers = top_layers(scores, k)
    description = f"{MEASURE}: reduction from restoring this layer alone in the all-linear student"
    return _result(context, measure, [frozenset(layers)], [], scores, description)


def _snapshot(depth: int, best: frozenset[int]) -> Snapshot:
    return Snapshot(step=depth, tokens=0, layers=tuple(sorted(best)))


def _result(
    context: SelectionContext,
    measure: HybridPerplexity,
    beam: list[frozenset[int]],
    history: list[Snapshot],
    scores: tuple[float, ...],
    description: str,
) -> SelectionResult:
    no_layers, all_layers = frozenset[int](), frozenset(range(context.layers))
    linear, teacher = (_hybrid_perplexity(context, start) for start in ("all-linear", "teacher"))
    return SelectionResult(
        layers=tuple(sorted(beam[0])),
        scores=scores,
        measure=description,
        history=tuple(history),
        cost=Cost(all_linear_tokens=context.all_linear_tokens),
        details={
            "selected": measure.components(beam[0]),
            "beam": [measure.components(each) for each in beam],
            "all_linear": linear.components(no_layers),
            "teacher": teacher.components(all_layers),
            "path": [measure.components(frozenset(each.layers)) for each in history],
            "hybrids_measured": measure.num_measured,
        },
    )

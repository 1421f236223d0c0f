"""`beam_add`, `beam_replace` and `greedy`: search by perplexity, without any training."""

from collections.abc import Collection
from typing import Any

from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.hybrids import restored
from evalsuite.distill.selection.outcome import Cost, Outcome, Snapshot
from evalsuite.distill.selection.perplexity import Perplexities
from evalsuite.distill.selection.sets import top_layers

MEASURE = "mean perplexity over recall, knowledge and text"


def _perplexities(ground: Ground) -> Perplexities:
    # All processes make the trunk together, before one of them measures alone.
    trunk, full = ground.trunk, ground.full

    def hybrid(softmax: Collection[int]) -> Any:
        return restored(trunk, full, softmax)

    return Perplexities(ground, hybrid, "perplexity", {"mixer": ground.mixer})


def beam_add(ground: Ground, k: int) -> Outcome:
    """Beam search from the all-linear student, adding one of the teacher's layers at each depth.

    At each depth the configurations of lowest mean perplexity are kept (arXiv 2603.26556, section 4.1.1
    and Appendix D). A layer's score is what it alone takes off the all-linear student's perplexity.
    """
    every = frozenset(range(ground.layers))
    measure = _perplexities(ground)
    measure(frozenset())
    beam: list[frozenset[int]] = [frozenset()]
    history = []
    for depth in range(1, k + 1):
        candidates = sorted({each | {layer} for each in beam for layer in every - each}, key=sorted)
        beam = measure.best(candidates, ground.options.beam, f"depth {depth} of {k}")
        history.append(_snapshot(depth, beam[0]))
    nothing = measure(frozenset())
    scores = tuple(nothing - measure(frozenset([layer])) for layer in range(ground.layers))
    measured = f"{MEASURE}, taken off by this layer alone in the all-linear student"
    return _outcome(ground, measure, beam, history, scores, measured)


def beam_replace(ground: Ground, k: int) -> Outcome:
    """Beam search from the teacher, replacing one layer by the student's linear one at each depth.

    The configurations whose mean perplexity suffers least are kept until K softmax layers are left
    (arXiv 2603.26556, Appendix D). A layer's score is what its replacement alone adds to the perplexity.
    """
    every = frozenset(range(ground.layers))
    measure = _perplexities(ground)
    whole = measure(every)
    beam: list[frozenset[int]] = [every]
    history = []
    for depth in range(1, ground.layers - k + 1):
        candidates = sorted({each - {layer} for each in beam for layer in each}, key=sorted)
        beam = measure.best(candidates, ground.options.beam, f"depth {depth} of {ground.layers - k}")
        history.append(_snapshot(depth, beam[0]))
    scores = tuple(measure(every - {layer}) - whole for layer in range(ground.layers))
    measured = f"{MEASURE}, added by replacing this layer alone in the teacher"
    return _outcome(ground, measure, beam, history, scores, measured)


def greedy(ground: Ground, k: int) -> Outcome:
    """The K layers whose restoration alone lowers the all-linear student's mean perplexity most.

    "Selects top-k layers by individual perplexity impact" (arXiv 2603.26556, Appendix D).
    """
    measure = _perplexities(ground)
    alone = [frozenset([layer]) for layer in range(ground.layers)]
    measure.best(alone, 1, "layers")
    nothing = measure(frozenset())
    scores = tuple(nothing - measure(each) for each in alone)
    chosen = top_layers(scores, k)
    measured = f"{MEASURE}, taken off by this layer alone in the all-linear student"
    return _outcome(ground, measure, [frozenset(chosen)], [], scores, measured)


def _snapshot(depth: int, best: frozenset[int]) -> Snapshot:
    return Snapshot(step=depth, tokens=0, layers=tuple(sorted(best)))


def _outcome(
    ground: Ground,
    measure: Perplexities,
    beam: list[frozenset[int]],
    history: list[Snapshot],
    scores: tuple[float, ...],
    measured: str,
) -> Outcome:
    nothing, every = frozenset[int](), frozenset(range(ground.layers))
    return Outcome(
        layers=tuple(sorted(beam[0])),
        scores=scores,
        measure=measured,
        history=tuple(history),
        cost=Cost(trunk_tokens=ground.trunk_tokens),
        details={
            "chosen": measure.parts(beam[0]),
            "beam": [measure.parts(each) for each in beam],
            "all_linear": measure.parts(nothing),
            "teacher": measure.parts(every),
            "path": [measure.parts(frozenset(each.layers)) for each in history],
            "hybrids_measured": measure.measured,
        },
    )

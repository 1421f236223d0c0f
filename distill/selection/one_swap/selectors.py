"""`ga_s1`, `ga_s2`, `gr_s1`, `gr_s2`, `avg_s1`, `avg_s2`: one-swap importance after brief adaptation.

Addition (GA) starts from the all-linear student and restores one layer; removal (GR) starts from the teacher
and makes one layer linear. S1 scores the hidden-state distance after alignment, S2 the KL divergence after
knowledge distillation (Table 3; sections 3.2 and 5.1). Alignment feeds each layer the teacher's input, so it
is the same for every swap and shared.

By default every layer is scored once and the top K are selected (Algorithm 1; Eq. 6, section 3.3). Option
`iterative` decides one layer per round (Table 3: "iteratively converts the layer to softmax that helps
performance most", "... to linear that hurts performance least"). The paper uses one name for both and does
not state which its tables report, nor whether a round continues from the weights of the one before. Here each
round starts from the same aligned student, so that all candidates have the same training. GA takes K rounds,
GR as many as layers become linear. In stage 2 the early-stop rule ends a round once its layer is decided.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import nan
from typing import Any

from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.layer_sets import jaccard, one_swap_jaccard, ranks, top_layers
from evalsuite.distill.selection.one_swap.candidates import swap_layers
from evalsuite.distill.selection.one_swap.training import (
    ADD,
    REMOVE,
    aligned_all_linear,
    alignment_seconds,
    alignment_stage,
    alignment_training,
    distillation_training,
)
from evalsuite.distill.selection.options import shorten_alignment_stage
from evalsuite.distill.selection.result import Cost, SelectionResult, Snapshot

S1_MEASURE = {
    ADD: "minus the hidden-state distance (Eq. 4) with this layer alone restored, after alignment",
    REMOVE: "hidden-state distance (Eq. 4) with this layer alone linear, after alignment",
}
S2_MEASURE = {
    ADD: "minus KL(teacher ‖ student) with this layer alone restored, nats per token, after distillation",
    REMOVE: "KL(teacher ‖ student) with this layer alone linear, nats per token, after distillation",
}


def stage1(context: SelectionContext, k: int, *, direction: str) -> SelectionResult:
    """Rank layers by the hidden-state distance after brief alignment, one swap each (GA-S1, GR-S1)."""
    if context.options.iterative:
        return stage1_rounds(context, k, direction)
    stage = alignment_stage(context)
    training = alignment_training(context, stage, scored=True)
    history = training.run(k, direction)
    tokens = stage.steps * stage.tokens_per_step
    return SelectionResult(
        layers=history[-1].layers,
        scores=history[-1].scores,
        measure=S1_MEASURE[direction],
        history=tuple(history),
        cost=Cost(
            student_tokens=tokens,
            teacher_tokens=tokens,
            tokens_without_early_stop=tokens,
            tokens_without_sharing=context.layers * tokens,
            teacher_tokens_without_sharing=context.layers * tokens,
            all_linear_tokens=context.all_linear_tokens,
            seconds=training.seconds,
        ),
        details=_stability(context, history, k),
    )


def stage2(context: SelectionContext, k: int, *, direction: str) -> SelectionResult:
    """Rank layers by held-out KL after brief distillation, one swap each (GA-S2: Algorithm 1; GR-S2).

    Training stops early by the rolling-Jaccard rule of Appendix B, unless option `early_stop` is false. The
    time covers alignment, training and scoring up to the stop, without loading models or distilling the
    all-linear student.
    """
    if context.options.iterative:
        return stage2_rounds(context, k, direction)
    stage, align = context.kd_stage, shorten_alignment_stage(context.training_recipe, context.options)
    training = distillation_training(context, direction)
    history = training.run(k, direction, early_stop=context.options.early_stop)
    last = history[-1]
    stopped_early = last.step < stage.steps
    per_step = stage.tokens_per_step
    aligned = 0 if align is None else align.steps * align.tokens_per_step
    return SelectionResult(
        layers=last.layers,
        scores=last.scores,
        measure=S2_MEASURE[direction],
        history=tuple(history),
        stopped_early=stopped_early,
        notes=_early_stop_notes(context),
        cost=Cost(
            student_tokens=aligned + context.layers * last.step * per_step,
            teacher_tokens=aligned + last.step * per_step,
            tokens_without_early_stop=aligned + context.layers * stage.steps * per_step,
            tokens_without_sharing=context.layers * (aligned + stage.steps * per_step),
            teacher_tokens_without_sharing=context.layers * (aligned + stage.steps * per_step),
            all_linear_tokens=context.all_linear_tokens,
            seconds=training.seconds + alignment_seconds(context, align),
        ),
        details={"steps": stage.steps, **_stability(context, history, k)},
    )


def averaged(context: SelectionContext, k: int, *, stage: int) -> SelectionResult:
    """Rank layers by the mean of their ranks in removal and addition (AVG-S1, AVG-S2)."""
    selector = stage1 if stage == 1 else stage2
    parts = [selector(context, k, direction=direction) for direction in (ADD, REMOVE)]
    layer_ranks = [ranks(part.scores) for part in parts]
    scores = tuple(-(a + b) / 2 for a, b in zip(*layer_ranks, strict=True))
    costs = [part.cost for part in parts]
    # Both directions share one alignment, which is the only training of stage 1.
    align = shorten_alignment_stage(context.training_recipe, context.options)
    shared = 0 if align is None else align.steps * align.tokens_per_step
    return SelectionResult(
        layers=top_layers(scores, k),
        scores=scores,
        measure="minus the mean rank of this layer in removal and addition",
        stopped_early=any(part.stopped_early for part in parts),
        cost=Cost(
            student_tokens=sum(cost.student_tokens for cost in costs) - shared,
            teacher_tokens=sum(cost.teacher_tokens for cost in costs) - shared,
            tokens_without_early_stop=sum(cost.tokens_without_early_stop for cost in costs) - shared,
            tokens_without_sharing=sum(cost.tokens_without_sharing for cost in costs),
            teacher_tokens_without_sharing=sum(cost.teacher_tokens_without_sharing for cost in costs),
            all_linear_tokens=context.all_linear_tokens,
            seconds=max(cost.seconds for cost in costs) if stage == 1 else sum(c.seconds for c in costs),
        ),
        details={
            direction: {"layers": list(part.layers), "scores": list(part.scores)}
            for direction, part in zip((ADD, REMOVE), parts, strict=True)
        },
    )


def _early_stop_notes(context: SelectionContext) -> tuple[str, ...]:
    """A note if the early stop was requested but cannot shorten the pass."""
    options, steps = context.options, context.kd_stage.steps
    snapshots = -(-steps // options.snapshot_interval)
    if not options.early_stop or snapshots > options.window:
        return ()
    return (
        f"the pass has {snapshots} snapshots and cannot stop early, which needs more than the "
        f"{options.window} of one window: raise tokens, or lower snapshot_interval",
    )


def _stability(context: SelectionContext, history: Sequence[Snapshot], k: int) -> dict[str, Any]:
    """Stability of the top-K set: the last window, and the share of snapshots within one swap of the end."""
    sets = [snapshot.layers for snapshot in history]
    window = context.options.rule.last(sets)
    near = [jaccard(each, sets[-1]) >= one_swap_jaccard(k) - 1e-12 for each in sets]
    return {
        "window": {
            "snapshots": len(window.sets),
            "jaccard": window.jaccard,
            "backbone": window.backbone,
            "union": window.union,
        },
        "within_one_swap_of_last": sum(near) / len(near),
        "step": history[-1].step,
        "scores": [list(snapshot.scores) for snapshot in history],
    }


ROUNDS_MEASURE = {
    ADD: "rounds with this layer restored: all for the first one, 0 if never restored",
    REMOVE: "rounds with this layer still softmax: 0 for the first made linear, all if never made linear",
}


def stage1_rounds(context: SelectionContext, k: int, direction: str) -> SelectionResult:
    """GA-S1 and GR-S1 in rounds: one shared alignment, then rounds that only measure (Eq. 4)."""
    stage = alignment_stage(context)
    all_linear = aligned_all_linear(context, stage)
    sign = -1.0 if direction == ADD else 1.0
    progress_log = context.progress_log(
        f"align-rounds-{direction}",
        {
            "stage": stage.model_dump(mode="json"),
            "held_out": context.options.held_out,
            "all_linear": context.options.all_linear,
            "all_linear_stages": context.options.all_linear_stages,
        },
    )
    known = {tuple(row["layers"]): row["score"] for row in progress_log.rows}
    decided: list[int] = []
    rounds = []
    for _ in range(_num_rounds(context, k, direction)):
        swaps = {layer: tuple(sorted([*decided, layer])) for layer in _undecided(context, decided)}
        missing = {
            layers: partial(swap_layers, context, direction, all_linear, layers)
            for layers in swaps.values()
            if layers not in known
        }
        for layers, distance in context.held_out.hidden_distances(missing).items():
            known[layers] = sign * distance
            progress_log.append({"layers": layers, "score": known[layers]})
        scores = {layer: known[layers] for layer, layers in swaps.items()}
        decided.append(_decide(context, direction, scores))
        rounds.append({"layer": decided[-1], "scores": _by_layer(context, scores)})
    tokens = stage.steps * stage.tokens_per_step
    history = [_snapshot(context, direction, decided[: i + 1], i + 1, tokens) for i in range(len(decided))]
    cost = Cost(
        student_tokens=tokens,
        teacher_tokens=tokens,
        tokens_without_early_stop=tokens,
        tokens_without_sharing=_num_candidates(context, len(decided)) * tokens,
        teacher_tokens_without_sharing=_num_candidates(context, len(decided)) * tokens,
        all_linear_tokens=context.all_linear_tokens,
        seconds=alignment_seconds(context, stage),
    )
    return _result(context, k, direction, decided, history, cost, {"rounds": rounds}, stopped_early=False)


def stage2_rounds(context: SelectionContext, k: int, direction: str) -> SelectionResult:
    """GA-S2 and GR-S2 in rounds: each distils and scores one student per undecided layer."""
    stage, align = context.kd_stage, shorten_alignment_stage(context.training_recipe, context.options)
    per_step = stage.tokens_per_step
    aligned = 0 if align is None else align.steps * align.tokens_per_step
    decided: list[int] = []
    rounds: list[dict[str, Any]] = []
    history = []
    spent, steps, seconds = aligned, 0, 0.0
    for number in range(_num_rounds(context, k, direction)):
        undecided = _undecided(context, decided)
        training = distillation_training(context, direction, decided)
        # Addition decides the best undecided layer; removal the worst, so all others stay in the top set.
        top = 1 if direction == ADD else len(undecided) - 1
        last = training.run(top, direction, early_stop=context.options.early_stop)[-1]
        training.drop_state()
        scores = {layer: last.scores[layer] for layer in undecided}
        decided.append(_decide(context, direction, scores))
        spent += len(undecided) * last.step * per_step
        steps += last.step
        seconds += training.seconds
        rounds.append(
            {
                "layer": decided[-1],
                "scores": _by_layer(context, scores),
                "steps": last.step,
                "of": stage.steps,
            }
        )
        history.append(_snapshot(context, direction, decided, number + 1, spent))
    complete = _num_candidates(context, len(decided)) * stage.steps * per_step
    cost = Cost(
        student_tokens=spent,
        teacher_tokens=aligned + steps * per_step,
        tokens_without_early_stop=aligned + complete,
        tokens_without_sharing=_num_candidates(context, len(decided)) * aligned + complete,
        teacher_tokens_without_sharing=_num_candidates(context, len(decided)) * aligned + complete,
        all_linear_tokens=context.all_linear_tokens,
        seconds=seconds + alignment_seconds(context, align),
    )
    stopped_early = any(each["steps"] < each["of"] for each in rounds)
    return _result(
        context, k, direction, decided, history, cost, {"rounds": rounds}, stopped_early=stopped_early
    )


def _num_rounds(context: SelectionContext, k: int, direction: str) -> int:
    return k if direction == ADD else context.layers - k


def _undecided(context: SelectionContext, decided: Sequence[int]) -> list[int]:
    return [layer for layer in range(context.layers) if layer not in decided]


def _num_candidates(context: SelectionContext, rounds: int) -> int:
    """Number of candidates over `rounds` rounds."""
    return sum(context.layers - number for number in range(rounds))


def _decide(context: SelectionContext, direction: str, scores: Mapping[int, float]) -> int:
    """Return the layer that helps most, or hurts least; the first one on ties."""
    sign = 1.0 if direction == ADD else -1.0
    (layer,) = top_layers([sign * scores.get(layer, nan) for layer in range(context.layers)], 1)
    return layer


def _by_layer(context: SelectionContext, scores: Mapping[int, float]) -> list[float | None]:
    return [scores.get(layer) for layer in range(context.layers)]


def _softmax(context: SelectionContext, direction: str, decided: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(decided)) if direction == ADD else tuple(_undecided(context, decided))


def _snapshot(
    context: SelectionContext, direction: str, decided: Sequence[int], step: int, tokens: int
) -> Snapshot:
    return Snapshot(step=step, tokens=tokens, layers=_softmax(context, direction, decided))


def _result(
    context: SelectionContext,
    k: int,
    direction: str,
    decided: Sequence[int],
    history: Sequence[Snapshot],
    cost: Cost,
    details: Mapping[str, Any],
    *,
    stopped_early: bool,
) -> SelectionResult:
    """Build the result; the score of a layer is the round that decided it."""
    rounds = len(decided)
    round_of = {layer: number for number, layer in enumerate(decided)}
    if direction == ADD:
        scores = [float(rounds - round_of.get(layer, rounds)) for layer in range(context.layers)]
    else:
        scores = [float(round_of.get(layer, rounds)) for layer in range(context.layers)]
    layers = _softmax(context, direction, decided)
    assert len(layers) == k
    return SelectionResult(
        layers=layers,
        scores=tuple(scores),
        measure=ROUNDS_MEASURE[direction],
        history=tuple(history),
        stopped_early=stopped_early,
        cost=cost,
        details=details,
    )

"""The structural selectors one layer a round, as Table 3 of KL-guided selection describes them.

"Starts with all linear; iteratively converts the layer to softmax that helps performance most" (GA), "starts
with all softmax; iteratively converts the layer to linear that hurts performance least" (GR), "after brief
Stage-1 adaptation" or "a brief Stage-2 knowledge distillation for adaptation at each step". The paper does
not say whether a round goes on with the weights of the one before. Here each starts from the same aligned
trunk, so that all candidates of all rounds were trained alike; GA takes K rounds, GR as many as layers become
linear. In stage 2 the early-stop rule ends a round once the layer that it decides has settled.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from evalsuite.distill.selection.brief import (
    ADD,
    REMOVE,
    aligned_trunk,
    alignment,
    alignment_seconds,
    distillation_pass,
)
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.options import alignment_stage
from evalsuite.distill.selection.outcome import Cost, Outcome, Snapshot
from evalsuite.distill.selection.sets import top_layers
from evalsuite.distill.selection.swaps import swapped

MEASURE = {
    ADD: "rounds with this layer restored: all for the first one, 0 for one that never was",
    REMOVE: "rounds that this layer stayed softmax: 0 for the first made linear, all for one that never was",
}


def stage1_rounds(ground: Ground, k: int, direction: str) -> Outcome:
    """GA-S1 and GR-S1 by rounds: the trunk is aligned once, rounds only measure (Eq. 4)."""
    stage = alignment(ground)
    trunk = aligned_trunk(ground, stage)
    sign = -1.0 if direction == ADD else 1.0
    journal = ground.journal(
        f"align-rounds-{direction}",
        {
            "stage": stage.model_dump(mode="json"),
            "held_out": ground.options.held_out,
            "trunk": ground.options.trunk,
            "trunk_stages": ground.options.trunk_stages,
        },
    )
    known = {tuple(row["layers"]): row["score"] for row in journal.rows}
    decided: list[int] = []
    rounds = []
    for _ in range(_count(ground, k, direction)):
        scores = {}
        for layer in _left(ground, decided):
            layers = tuple(sorted([*decided, layer]))
            if layers not in known:
                with swapped(ground, direction, trunk, layers) as student:
                    known[layers] = sign * ground.held_out.hidden_distance(student)
                journal.append({"layers": layers, "score": known[layers]})
            scores[layer] = known[layers]
        decided.append(_decided(ground, direction, scores))
        rounds.append({"layer": decided[-1], "scores": _by_layer(ground, scores)})
    tokens = stage.steps * stage.batch * stage.length
    history = [_snapshot(ground, direction, decided[: i + 1], i + 1, tokens) for i in range(len(decided))]
    cost = Cost(
        student_tokens=tokens,
        teacher_tokens=tokens,
        planned_tokens=tokens,
        separate_student_tokens=_candidates(ground, len(decided)) * tokens,
        separate_teacher_tokens=_candidates(ground, len(decided)) * tokens,
        trunk_tokens=ground.trunk_tokens,
        seconds=alignment_seconds(ground, stage),
    )
    return _outcome(ground, k, direction, decided, history, cost, {"rounds": rounds}, stopped=False)


def stage2_rounds(ground: Ground, k: int, direction: str) -> Outcome:
    """GA-S2 and GR-S2 by rounds: in each, one student per layer that is left is distilled and rated."""
    stage, align = ground.kd, alignment_stage(ground.readable, ground.options)
    per_step = stage.batch * stage.length
    aligned = 0 if align is None else align.steps * align.batch * align.length
    decided: list[int] = []
    rounds: list[dict[str, Any]] = []
    history = []
    spent, steps, seconds = aligned, 0, 0.0
    for number in range(_count(ground, k, direction)):
        left = _left(ground, decided)
        run = distillation_pass(ground, direction, decided)
        # Restoring decides the best of those left, removing the worst: all others of them stay in the set.
        stays = 1 if direction == ADD else len(left) - 1
        last = run.run(stays, direction, stop=ground.options.stop)[-1]
        run.drop_state()
        scores = {layer: last.scores[layer] for layer in left}
        decided.append(_decided(ground, direction, scores))
        spent += len(left) * last.step * per_step
        steps += last.step
        seconds += run.seconds
        rounds.append(
            {"layer": decided[-1], "scores": _by_layer(ground, scores), "steps": last.step, "of": stage.steps}
        )
        history.append(_snapshot(ground, direction, decided, number + 1, spent))
    whole = _candidates(ground, len(decided)) * stage.steps * per_step
    cost = Cost(
        student_tokens=spent,
        teacher_tokens=aligned + steps * per_step,
        planned_tokens=aligned + whole,
        separate_student_tokens=_candidates(ground, len(decided)) * aligned + whole,
        separate_teacher_tokens=_candidates(ground, len(decided)) * aligned + whole,
        trunk_tokens=ground.trunk_tokens,
        seconds=seconds + alignment_seconds(ground, align),
    )
    stopped = any(each["steps"] < each["of"] for each in rounds)
    return _outcome(ground, k, direction, decided, history, cost, {"rounds": rounds}, stopped=stopped)


def _count(ground: Ground, k: int, direction: str) -> int:
    return k if direction == ADD else ground.layers - k


def _left(ground: Ground, decided: Sequence[int]) -> list[int]:
    return [layer for layer in range(ground.layers) if layer not in decided]


def _candidates(ground: Ground, rounds: int) -> int:
    """How many candidates that many rounds have."""
    return sum(ground.layers - number for number in range(rounds))


def _decided(ground: Ground, direction: str, scores: Mapping[int, float]) -> int:
    """The layer that helps most, or the one that hurts least; the first of equals."""
    sign = 1.0 if direction == ADD else -1.0
    (layer,) = top_layers([sign * scores.get(layer, nan) for layer in range(ground.layers)], 1)
    return layer


def _by_layer(ground: Ground, scores: Mapping[int, float]) -> list[float | None]:
    return [scores.get(layer) for layer in range(ground.layers)]


def _softmax(ground: Ground, direction: str, decided: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(decided)) if direction == ADD else tuple(_left(ground, decided))


def _snapshot(ground: Ground, direction: str, decided: Sequence[int], step: int, tokens: int) -> Snapshot:
    return Snapshot(step=step, tokens=tokens, layers=_softmax(ground, direction, decided))


def _outcome(
    ground: Ground,
    k: int,
    direction: str,
    decided: Sequence[int],
    history: Sequence[Snapshot],
    cost: Cost,
    details: Mapping[str, Any],
    *,
    stopped: bool,
) -> Outcome:
    """The layers, each rated by the round that decided it."""
    rounds = len(decided)
    place = {layer: number for number, layer in enumerate(decided)}
    if direction == ADD:
        scores = [float(rounds - place.get(layer, rounds)) for layer in range(ground.layers)]
    else:
        scores = [float(place.get(layer, rounds)) for layer in range(ground.layers)]
    layers = _softmax(ground, direction, decided)
    assert len(layers) == k
    return Outcome(
        layers=layers,
        scores=tuple(scores),
        measure=MEASURE[direction],
        history=tuple(history),
        stopped=stopped,
        cost=cost,
        details=details,
    )

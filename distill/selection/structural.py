"""`ga_s1`, `ga_s2`, `gr_s1`, `gr_s2`, `avg_s1`, `avg_s2`: one-swap importance after brief adaptation.

Addition (GA) starts from the all-linear student and restores one layer, removal (GR) starts from the
teacher and makes one layer linear; S1 rates the hidden-state distance after alignment, S2 the KL divergence
after knowledge distillation (Table 3; sections 3.2 and 5.1). Algorithm 1 rates every layer once and takes
the top K (Eq. 6, section 3.3), which is what happens here by default; Table 3 says "iteratively", which
option `iterative` follows (see `rounds`). The paper has both under one name and does not say which its tables
are. Stage 1 gives each layer the teacher's input, so it is the same for every swap and is done once.
"""

from collections.abc import Sequence
from typing import Any

from evalsuite.distill.selection.brief import (
    ADD,
    REMOVE,
    alignment,
    alignment_pass,
    alignment_seconds,
    distillation_pass,
)
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.options import alignment_stage
from evalsuite.distill.selection.outcome import Cost, Outcome, Snapshot
from evalsuite.distill.selection.rounds import stage1_rounds, stage2_rounds
from evalsuite.distill.selection.sets import jaccard, one_swap_jaccard, ranks, top_layers

S1_MEASURE = {
    ADD: "minus the hidden-state distance (Eq. 4) with this layer alone restored, after alignment",
    REMOVE: "hidden-state distance (Eq. 4) with this layer alone linear, after alignment",
}
S2_MEASURE = {
    ADD: "minus KL(teacher ‖ student) with this layer alone restored, nats per token, after distillation",
    REMOVE: "KL(teacher ‖ student) with this layer alone linear, nats per token, after distillation",
}


def stage1(ground: Ground, k: int, *, direction: str) -> Outcome:
    """Layers by the hidden-state distance after brief alignment, one swapped at a time (GA-S1, GR-S1)."""
    if ground.options.iterative:
        return stage1_rounds(ground, k, direction)
    stage = alignment(ground)
    run = alignment_pass(ground, stage, rated=True)
    history = run.run(k, direction)
    tokens = stage.steps * stage.batch * stage.length
    return Outcome(
        layers=history[-1].layers,
        scores=history[-1].scores,
        measure=S1_MEASURE[direction],
        history=tuple(history),
        cost=Cost(
            student_tokens=tokens,
            teacher_tokens=tokens,
            planned_tokens=tokens,
            separate_student_tokens=ground.layers * tokens,
            separate_teacher_tokens=ground.layers * tokens,
            trunk_tokens=ground.trunk_tokens,
            seconds=run.seconds,
        ),
        details=_stability(ground, history, k),
    )


def stage2(ground: Ground, k: int, *, direction: str) -> Outcome:
    """Layers by held-out KL after brief distillation, one swapped at a time (GA-S2: Algorithm 1; GR-S2).

    The pass stops early by the rolling-Jaccard rule of Appendix B, unless option `stop` is false. Seconds are
    those of alignment, training and rating up to the stop; loading models and the trunk are not in them.
    """
    if ground.options.iterative:
        return stage2_rounds(ground, k, direction)
    stage, align = ground.kd, alignment_stage(ground.readable, ground.options)
    run = distillation_pass(ground, direction)
    history = run.run(k, direction, stop=ground.options.stop)
    last = history[-1]
    stopped = last.step < stage.steps
    per_step = stage.batch * stage.length
    aligned = 0 if align is None else align.steps * align.batch * align.length
    return Outcome(
        layers=last.layers,
        scores=last.scores,
        measure=S2_MEASURE[direction],
        history=tuple(history),
        stopped=stopped,
        cost=Cost(
            student_tokens=aligned + ground.layers * last.step * per_step,
            teacher_tokens=aligned + last.step * per_step,
            planned_tokens=aligned + ground.layers * stage.steps * per_step,
            separate_student_tokens=ground.layers * (aligned + stage.steps * per_step),
            separate_teacher_tokens=ground.layers * (aligned + stage.steps * per_step),
            trunk_tokens=ground.trunk_tokens,
            seconds=run.seconds + alignment_seconds(ground, align),
        ),
        details={"steps": stage.steps, **_stability(ground, history, k)},
    )


def averaged(ground: Ground, k: int, *, stage: int) -> Outcome:
    """Layers by the mean of their ranks in greedy removal and greedy addition (AVG-S1, AVG-S2)."""
    one = stage1 if stage == 1 else stage2
    parts = [one(ground, k, direction=direction) for direction in (ADD, REMOVE)]
    places = [ranks(part.scores) for part in parts]
    scores = tuple(-(a + b) / 2 for a, b in zip(*places, strict=True))
    costs = [part.cost for part in parts]
    # Both directions share one alignment pass, which is all there is to stage 1.
    aligned = alignment_stage(ground.readable, ground.options)
    shared = 0 if aligned is None else aligned.steps * aligned.batch * aligned.length
    return Outcome(
        layers=top_layers(scores, k),
        scores=scores,
        measure="minus the mean rank of this layer in removal and addition",
        stopped=any(part.stopped for part in parts),
        cost=Cost(
            student_tokens=sum(cost.student_tokens for cost in costs) - shared,
            teacher_tokens=sum(cost.teacher_tokens for cost in costs) - shared,
            planned_tokens=sum(cost.planned_tokens for cost in costs) - shared,
            separate_student_tokens=sum(cost.separate_student_tokens for cost in costs),
            separate_teacher_tokens=sum(cost.separate_teacher_tokens for cost in costs),
            trunk_tokens=ground.trunk_tokens,
            seconds=max(cost.seconds for cost in costs) if stage == 1 else sum(c.seconds for c in costs),
        ),
        details={
            direction: {"layers": list(part.layers), "scores": list(part.scores)}
            for direction, part in zip((ADD, REMOVE), parts, strict=True)
        },
    )


def _stability(ground: Ground, history: Sequence[Snapshot], k: int) -> dict[str, Any]:
    """The window at the end of the pass, and how near the way there was to where it led."""
    sets = [snapshot.layers for snapshot in history]
    window = ground.options.rule.last(sets)
    near = [jaccard(each, sets[-1]) >= one_swap_jaccard(k) - 1e-12 for each in sets]
    return {
        "window": {
            "snapshots": len(window.sets),
            "jaccard": window.jaccard,
            "backbone": window.backbone,
            "union": window.union,
        },
        "within_one_swap_of_the_last": sum(near) / len(near),
        "step": history[-1].step,
        "scores": [list(snapshot.scores) for snapshot in history],
    }

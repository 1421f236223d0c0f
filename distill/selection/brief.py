"""The passes of the structural selectors: brief alignment, made once, and brief distillation from it."""

from collections.abc import Sequence
from typing import Any

from evalsuite.distill.recipe import Stage
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.options import alignment_stage
from evalsuite.distill.selection.passes import OneSwapPass
from evalsuite.distill.selection.swaps import Aligned, Candidates, Distilled
from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM

ADD, REMOVE = "add", "remove"


def alignment(ground: Ground) -> Stage:
    """The brief first stage. Raises ConfigError if there is none, as a stage-1 selector needs one."""
    stage = alignment_stage(ground.readable, ground.options)
    if stage is None:
        raise ConfigError(
            "a stage-1 selector rates layers after alignment: the recipe needs an alignment stage, and "
            "--option align_tokens more than 0"
        )
    return stage


def alignment_pass(ground: Ground, stage: Stage, *, rated: bool) -> OneSwapPass:
    """Stage 1 of all candidates, rated on its way for the stage-1 selectors."""

    def make(layers: Sequence[int]) -> Candidates:
        return Aligned(ground, stage, layers)

    return OneSwapPass(ground, stage, make, name="align", about={"rated": rated}, rated=rated)


def distillation_pass(ground: Ground, direction: str, before: Sequence[int] = ()) -> OneSwapPass:
    """Stage 2 of one student per layer, in each of which the layers `before` are swapped as well."""
    stage, align = ground.kd, alignment_stage(ground.readable, ground.options)

    def make(layers: Sequence[int]) -> Candidates:
        return Distilled(ground, stage, direction, aligned_trunk(ground, align), layers, before)

    about: dict[str, Any] = {"align": None if align is None else align.model_dump(mode="json")}
    if before:
        about["before"] = sorted(before)
    left = [layer for layer in range(ground.layers) if layer not in before]
    return OneSwapPass(ground, stage, make, name=f"kd-{direction}", about=about, layers=left)


def aligned_trunk(ground: Ground, stage: Stage | None) -> StudentForCausalLM:
    """The trunk after brief alignment, from whichever pass has been there."""
    if stage is None:
        return ground.trunk
    run = _aligning(ground, stage)
    run.run(1, ADD)
    candidates: Any = run.trained_so_far()
    return ground.prepared(candidates.model)


def alignment_seconds(ground: Ground, stage: Stage | None) -> float:
    """How long the brief alignment took that a stage-2 pass started from."""
    if stage is None:
        return 0.0
    rows = _aligning(ground, stage).journal.rows
    return float(rows[-1]["seconds"]) if rows else 0.0


def _aligning(ground: Ground, stage: Stage) -> OneSwapPass:
    """The alignment pass that is done already, rated or not; else the one that is not rated."""
    runs = [alignment_pass(ground, stage, rated=rated) for rated in (True, False)]
    done = (run for run in runs if run.journal.rows and run.journal.rows[-1]["step"] == stage.steps)
    return next(done, runs[1])

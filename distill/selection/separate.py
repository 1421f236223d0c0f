"""One one-swap student trained by itself, as Algorithm 1 has it: what a pass of all of them saves.

It makes its own alignment and has the teacher to itself; the trunk and the models are taken as given.
"""

import time
from itertools import islice
from typing import Any

import torch

from evalsuite.distill.batches import StageData, read_ahead
from evalsuite.distill.recipe import Stage
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.hybrids import restored, with_own_parameters
from evalsuite.distill.selection.options import alignment_stage
from evalsuite.distill.selection.swaps import Alone
from evalsuite.distill.step import Stepper, Trainee
from evalsuite.models import StudentForCausalLM


def separate_run(ground: Ground, layer: int) -> dict[str, Any]:
    """Restore `layer` in the trunk, align and distil briefly, and rate it (Algorithm 1, lines 3 to 6).

    Returns:
        layer, importance (Eq. 6: minus the held-out KL, nats per token), tokens of the student (the
        teacher reads as many), and seconds of training and rating.
    """
    align = alignment_stage(ground.readable, ground.options)
    with restored(ground.trunk, ground.full, [layer]) as swapped:
        student = with_own_parameters(swapped, ground.kd.trains)
    assert ground.held_out.counted
    _settle(ground)
    began, tokens = time.monotonic(), 0
    for stage in (align, ground.kd):
        if stage is not None:
            _train(ground, student, stage)
            tokens += stage.steps * stage.batch * stage.length
    importance = -ground.held_out.kl(student)
    _settle(ground)
    return {
        "layer": layer,
        "importance": importance,
        "tokens": tokens,
        "seconds": time.monotonic() - began,
    }


def _train(ground: Ground, student: StudentForCausalLM, stage: Stage) -> None:
    trainee = Trainee("one-swap", student, ground.cast.dtype)
    trainee.enter(stage)
    parallel: Any = Alone(ground.device)
    stepper = Stepper(ground.teacher, [trainee], stage, parallel)
    data = StageData(ground.readable, stage, ground.tokenizer)
    for number, step in enumerate(read_ahead(islice(data, stage.steps))):
        stepper.step(step, number)
    trainee.leave()


def _settle(ground: Ground) -> None:
    if ground.device.type == "cuda":
        torch.cuda.synchronize(ground.device)

"""One one-swap student trained alone, as in Algorithm 1: the reference for joint one-swap training.

It has its own alignment and its own teacher forward passes; the all-linear student is shared.
"""

import time
from itertools import islice
from typing import Any

import torch

from evalsuite.distill.data.loader import StageDataLoader, prefetch
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.hybrids import copy_trainable, with_blocks_of
from evalsuite.distill.selection.one_swap_training import SingleProcessGroup
from evalsuite.distill.selection.selectors.one_swap import DistillationAddition
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.models import StudentForCausalLM


def train_single_candidate(
    context: SelectionContext, selector: DistillationAddition, layer: int
) -> dict[str, Any]:
    """Restore `layer` in the all-linear student, align, distil and score it (Algorithm 1, lines 3 to 6).

    Returns:
        layer, importance (Eq. 6: minus the held-out KL, nats per token), tokens of the student (the
        teacher reads as many), and seconds of training and scoring.
    """
    align, distillation = selector.align_stage(context), selector.shorten(context.kd_stage)
    swapped = with_blocks_of(context.all_linear, context.teacher, [layer])
    student = copy_trainable(swapped, distillation.trainable_set)
    assert context.held_out.num_tokens
    _synchronize(context)
    began, tokens = time.monotonic(), 0
    for stage in (align, distillation):
        if stage is not None:
            _train(context, student, stage)
            tokens += stage.steps * stage.tokens_per_step
    importance = -context.held_out.kl(student)
    _synchronize(context)
    return {
        "layer": layer,
        "importance": importance,
        "tokens": tokens,
        "seconds": time.monotonic() - began,
    }


def _train(context: SelectionContext, student: StudentForCausalLM, stage: Stage) -> None:
    train_state = StudentTrainState("one-swap", student, context.models.dtype)
    train_state.begin_stage(stage)
    process_group: Any = SingleProcessGroup(context.device)
    train_step = TrainStep(context.teacher, [train_state], stage, process_group)
    data = StageDataLoader(context.open_sources(), stage)
    for number, step in enumerate(prefetch(islice(data, stage.steps))):
        train_step(step, number)
    train_state.end_stage()


def _synchronize(context: SelectionContext) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)

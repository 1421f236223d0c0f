"""Learning-rate schedules as a function of the step."""

import math

from evalsuite.distill.config import ScheduleConfig


def lr_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Learning rate of `step` (from 0) out of `steps`, in units of the peak rate.

    The first step has a positive rate, and the last one exactly `min_lr_ratio`, unless there is no decay.
    """
    warmup = round(schedule.warmup_ratio * steps)
    decay = round(schedule.effective_decay_ratio * steps) if schedule.kind == "wsd" else steps - warmup
    if schedule.kind == "constant":
        decay = 0
    if step < warmup:
        return (step + 1) / warmup
    remaining = steps - 1 - step
    if decay == 0 or remaining >= decay:
        return 1.0
    # 1 at the last step, so that the schedule ends at its minimum exactly.
    progress = 1 - remaining / decay
    shape = (1 + math.cos(math.pi * progress)) / 2 if schedule.kind == "cosine" else 1 - progress
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * shape

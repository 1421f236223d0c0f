import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import get_wsd_schedule

from evalsuite.distill.optim.schedules import Schedule


def new(**settings: Any) -> Schedule:
    return Schedule.model_validate(settings)


SCHEDULES = [
    new(kind="wsd", warmup_ratio=0.1, decay_ratio=0.1, min_lr_ratio=0.02),
    new(kind="wsd", warmup_ratio=0.2, decay_ratio=0.8, min_lr_ratio=0.1),
    new(kind="wsd", warmup_ratio=0.0, decay_ratio=0.0),
    new(kind="linear", warmup_ratio=0.05),
    new(kind="cosine", warmup_ratio=0.05, min_lr_ratio=0.1),
    new(kind="constant", warmup_ratio=0.1),
    new(kind="wsd_without_decay", warmup_ratio=0.2, decay_ratio=0.1),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}-{s.warmup_ratio}-{s.decay_ratio}")
@pytest.mark.parametrize("steps", [1000, 2000])
def test_the_mean_rate_of_a_schedule(schedule, steps):
    mean = sum(schedule.factor(step, steps) for step in range(steps)) / steps
    warmup = schedule.warmup_ratio
    decay = min(schedule.decay_steps(steps) / steps, 1 - warmup)
    expected = warmup / 2 + (1 - warmup - decay) + decay * (1 + schedule.min_lr_ratio) / 2
    assert mean == pytest.approx(expected, abs=2 / steps)


@pytest.mark.parametrize("schedule", SCHEDULES[:2] + SCHEDULES[3:5], ids=lambda s: s.kind)
@pytest.mark.parametrize("steps", [20, 37, 1000])
def test_the_last_step_has_the_minimum_rate(schedule, steps):
    assert schedule.factor(steps - 1, steps) == pytest.approx(schedule.min_lr_ratio)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}-{s.warmup_ratio}-{s.decay_ratio}")
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_the_rate_stays_in_range_and_starts_above_zero(schedule, steps):
    factors = [schedule.factor(step, steps) for step in range(steps)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[0] > 0


SHORT = {
    ("wsd", 0.05): {1: [1], 2: [1, 1], 3: [1, 1, 0], 8: [1, 1, 1, 1, 1, 1, 0.5, 0]},
    ("wsd", 0.5): {1: [1], 2: [1, 1], 4: [0.5, 1, 1, 0], 5: [0.5, 1, 1, 1, 0]},
    ("linear", 0.0): {1: [1], 2: [1, 0], 3: [1, 0.5, 0], 5: [1, 0.75, 0.5, 0.25, 0]},
    ("linear", 0.05): {1: [1], 2: [1, 0], 3: [1, 0.5, 0], 5: [1, 0.75, 0.5, 0.25, 0]},
    ("linear", 0.5): {1: [1], 2: [1, 0], 4: [0.5, 1, 0.5, 0]},
    ("linear", 1.0): {1: [1], 2: [0.5, 1], 4: [0.25, 0.5, 0.75, 1]},
    ("cosine", 0.0): {1: [1], 2: [1, 0], 3: [1, 0.5, 0]},
    ("cosine", 0.5): {1: [1], 2: [1, 0], 4: [0.5, 1, 0.5, 0]},
    ("constant", 0.0): {1: [1], 3: [1, 1, 1]},
    ("constant", 0.5): {1: [1], 4: [0.5, 1, 1, 1]},
}


@pytest.mark.parametrize(("kind", "warmup"), SHORT)
def test_the_rates_of_short_stages(kind, warmup):
    schedule = new(kind=kind, warmup_ratio=warmup)
    for steps, expected in SHORT[kind, warmup].items():
        assert [schedule.factor(step, steps) for step in range(steps)] == pytest.approx(expected), steps


@pytest.mark.parametrize("kind", ["wsd", "linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("steps", range(1, 11))
def test_every_stage_reaches_its_rate(kind, warmup, steps):
    schedule = new(kind=kind, warmup_ratio=warmup, decay_ratio=1 - warmup, min_lr_ratio=0.1)
    factors = [schedule.factor(step, steps) for step in range(steps)]
    assert factors[0] > 0
    assert max(factors) == 1
    decays = kind != "constant" and steps > max(1, round(warmup * steps))
    assert factors[-1] == pytest.approx(0.1 if decays else 1)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.01, 0.2])
def test_decays_after_a_warmup_are_those_of_the_published_runs(kind, warmup):
    """The step after the peak is the first one of `steps - warmup` that decay."""
    schedule = new(kind=kind, warmup_ratio=warmup)
    first = round(warmup * 100)
    left = (100 - first - 1) / (100 - first)
    expected = left if kind == "linear" else (1 - math.cos(math.pi * left)) / 2
    assert schedule.factor(first, 100) == pytest.approx(expected, rel=1e-12)


def test_wsd_has_three_phases():
    schedule = new(warmup_ratio=0.1, decay_ratio=0.2, min_lr_ratio=0.0)
    factors = [schedule.factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10:80] == [1.0] * 70
    assert factors[80:] == pytest.approx([1 - (step + 1) / 20 for step in range(20)])


def test_ratios_that_add_up_to_more_than_one_are_refused():
    with pytest.raises(ValidationError, match="more than 1"):
        new(warmup_ratio=0.3, decay_ratio=0.8)


def test_the_published_schedule_never_decays():
    """20 % warmup, 80 % stable and 10 % decay in transformers, of which the last 10 % are past the end."""
    values = {"warmup_ratio": 0.2, "decay_ratio": 0.1, "min_lr_ratio": 1e-4}
    schedule = new(kind="wsd_without_decay", **values)
    published = get_wsd_schedule(
        torch.optim.SGD([torch.zeros(1)], lr=1.0),
        num_warmup_steps=20,
        num_stable_steps=80,
        num_decay_steps=10,
        min_lr_ratio=1e-4,
    )
    (factor,) = published.lr_lambdas
    assert [schedule.factor(step, 100) for step in range(20, 100)] == [1.0] * 80
    assert [factor(step) for step in range(20, 100)] == [1.0] * 80
    assert new(**values).factor(99, 100) == pytest.approx(1e-4)


def test_the_published_schedule_is_refused_where_it_would_decay():
    with pytest.raises(ValidationError, match=r"warmup_ratio of 0\.2 or more, not 0\.1"):
        new(kind="wsd_without_decay", warmup_ratio=0.1)

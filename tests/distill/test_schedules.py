import pytest
from pydantic import ValidationError

from evalsuite.distill.schedules import Schedule, lr_factor

SCHEDULES = [
    Schedule(kind="wsd", warmup=0.1, decay=0.1, min_ratio=0.02),
    Schedule(kind="wsd", warmup=0.2, decay=0.8, min_ratio=0.1),
    Schedule(kind="wsd", warmup=0.0, decay=0.0),
    Schedule(kind="linear", warmup=0.05),
    Schedule(kind="cosine", warmup=0.05, min_ratio=0.1),
    Schedule(kind="constant", warmup=0.1),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}-{s.warmup}-{s.decay}")
@pytest.mark.parametrize("steps", [1000, 2000])
def test_a_schedule_integrates_to_its_budget(schedule, steps):
    mean = sum(lr_factor(schedule, step, steps) for step in range(steps)) / steps
    assert mean == pytest.approx(schedule.integral, abs=2 / steps)


@pytest.mark.parametrize("schedule", SCHEDULES[:2] + SCHEDULES[3:5], ids=lambda s: s.kind)
@pytest.mark.parametrize("steps", [20, 37, 1000])
def test_the_last_step_has_the_minimum_ratio(schedule, steps):
    assert lr_factor(schedule, steps - 1, steps) == pytest.approx(schedule.min_ratio)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}-{s.warmup}-{s.decay}")
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_the_rate_never_leaves_its_range_and_never_starts_at_zero(schedule, steps):
    factors = [lr_factor(schedule, step, steps) for step in range(steps)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert steps == 1 or factors[0] > 0


def test_warm_up_stable_decay_has_its_three_parts():
    schedule = Schedule(warmup=0.1, decay=0.2, min_ratio=0.0)
    factors = [lr_factor(schedule, step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10:80] == [1.0] * 70
    assert factors[80:] == pytest.approx([1 - (step + 1) / 20 for step in range(20)])


def test_parts_that_add_to_more_than_everything_are_refused():
    """The defect of published code: 20 % warm-up, 80 % stable and 10 % decay never decay."""
    with pytest.raises(ValidationError, match="more than 1"):
        Schedule(warmup=0.3, decay=0.8)

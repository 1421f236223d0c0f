"""Both protocols' orders of a student's choices, on synthetic studies with known orders."""

import pytest

from evalsuite.reports.studies.training_choices.analysis.choices import order_agreement
from evalsuite.reports.studies.training_choices.design import BASE
from tests.reports.studies.training_choices.analysis.conftest import Make

LEVELS = {BASE: 0.9, "a": 0.6, "b": 0.3}


def test_equal_orders(make_scores: Make) -> None:
    found = order_agreement(make_scores({("h", arm): (x, x) for arm, x in LEVELS.items()}), "h")
    assert found is not None
    assert (found.choices, found.tau, found.pairs, found.same, found.opposite) == (3, 1.0, 3, 3, ())


def test_reversed_orders_name_what_each_protocol_prefers(make_scores: Make) -> None:
    found = order_agreement(make_scores({("h", arm): (x, 1 - x) for arm, x in LEVELS.items()}), "h")
    assert found is not None
    assert (found.tau, found.same) == (-1.0, 0)
    assert found.opposite == ((BASE, "a"), (BASE, "b"), ("a", "b"))


def test_differences_within_noise_are_not_decided(make_scores: Make) -> None:
    levels = {("h", BASE): (0.6, 0.6), ("h", "a"): (0.6, 0.6), ("h", "b"): (0.6, 0.6), ("h", "c"): (0.6, 0.1)}
    found = order_agreement(make_scores(levels, spread=0.02), "h")
    assert found is not None
    assert (found.pairs, found.same, found.opposite) == (6, 0, ())


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_decides_no_pair_against_the_other_protocol(make_scores: Make, seed: int) -> None:
    levels = {("h", f"arm{number}"): (0.6, 0.4) for number in range(8)}
    found = order_agreement(make_scores(levels, spread=0.02, documents=200, seed=seed), "h")
    assert found is not None
    assert found.opposite == ()


def test_two_choices_have_no_order_worth_a_count(make_scores: Make) -> None:
    assert order_agreement(make_scores(), "gdn") is None
    assert (
        order_agreement(make_scores({("h", arm): (x, x) for arm, x in LEVELS.items()}, seeds=1), "h") is None
    )

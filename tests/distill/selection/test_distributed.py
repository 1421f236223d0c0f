"""Candidates split over two processes."""

import json
from functools import partial

import pytest

from evalsuite.distill.selection import Selector, select
from tests.distill.selection.conftest import small_selector
from tests.distill.training.saved_states import read_state
from tests.distill.training.two_processes import needs_loopback, run_both


def run(selector: Selector, recipe, budget: int, folder, rank: int) -> None:
    select(recipe, selector, folder / "layers.json", budget=budget, device="cpu", quiet=True)


@needs_loopback
@pytest.mark.parametrize("selector", [pytest.param("ga_s2", marks=pytest.mark.long), "beam_add"])
def test_two_processes_give_the_scores_of_one(context, recipe, tmp_path, selector):
    """Beam search without a given all-linear student, which both processes must distil together first."""
    all_linear = str(context.all_linear_path) if selector == "ga_s2" else None
    # Training that stops early leaves its state.
    own = {"window": 2, "stop_on_last_slot_tie": True} if selector == "ga_s2" else {}
    budget = 2 if selector == "ga_s2" else 1
    chosen = small_selector(selector, all_linear=all_linear, **own)
    one = select(recipe, chosen, tmp_path / "one.json", budget=budget, device="cpu", quiet=True)
    folder = tmp_path / "two"
    assert run_both(partial(run, chosen, recipe, budget, folder)) == [0, 0]
    two = json.loads((folder / "layers.json").read_text())
    assert two["scores"] == pytest.approx(one["scores"], rel=1e-6 if all_linear else 1e-3)
    assert two["layers"] == one["layers"]
    if selector == "beam_add":
        assert two["details"]["hybrids_measured"] == one["details"]["hybrids_measured"] == 4
        return
    (state,) = folder.glob("*/kd-add-*/state")
    _, tensors = read_state(state)
    assert {name.partition("/")[0] for name in tensors} == {"random", *(f"layer-{i}" for i in range(3))}

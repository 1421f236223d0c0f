"""Iterative one-swap selection: start of each round, decisions, cost and resumption."""

import pytest

from evalsuite.distill.selection.one_swap import selectors
from evalsuite.distill.selection.one_swap.candidates import (
    DistilledCandidates,
    hybrid_from_linear,
    swap_mixers,
)
from evalsuite.distill.selection.one_swap.training import aligned_all_linear, distillation_training
from evalsuite.distill.selection.options import shorten_alignment_stage
from tests.distill.selection.test_one_swap import new_context, steps


@pytest.mark.parametrize(("direction", "layers"), [("add", (0, 2)), ("remove", (0,))])
def test_later_rounds_include_decided_layers(context, direction, layers):
    """The candidate for layer 1 has one more (or fewer) softmax layer after another was decided."""
    candidates = DistilledCandidates(
        context, context.kd_stage, direction, context.all_linear, [1], before=layers
    )
    (train_state,) = candidates.train_states
    softmax = [i for i, name in enumerate(train_state.model.config.mixers) if name == "softmax"]
    assert softmax == ([0, 1, 2] if direction == "add" else [2])
    for number, data in enumerate(steps(context, context.kd_stage, 1)):
        candidates.step(data, number)
    assert set(candidates.scores()[direction]) == {1}


@pytest.mark.parametrize(("direction", "k"), [("add", 2), pytest.param("remove", 1, marks=pytest.mark.long)])
def test_stage_2_rounds_train_the_undecided_layers(context, tmp_path, direction, k):
    context = new_context(context, tmp_path, early_stop=False, iterative=True)
    result = selectors.stage2(context, k, direction=direction)
    first = distillation_training(context, direction)
    scores = first.run(1, direction)[-1].scores
    decided = scores.index(max(scores) if direction == "add" else min(scores))
    built = result.details["rounds"]
    assert built[0]["layer"] == decided
    assert built[0]["scores"] == list(scores)
    assert built[1]["scores"][decided] is None
    others = {layer for layer in range(3) if layer != decided}
    second = built[1]["layer"]
    assert second in others
    expected = {decided, second} if direction == "add" else others - {second}
    assert set(result.layers) == expected
    # Three candidates, then two, each for the complete stage, with one alignment.
    stage = context.kd_stage
    complete = stage.steps * stage.tokens_per_step
    assert result.cost.student_tokens == 512 + 5 * complete
    assert result.cost.teacher_tokens == 512 + 2 * complete
    assert result.cost.tokens_without_sharing == 5 * (512 + complete)
    assert not list(tmp_path.rglob("layer-*.safetensors"))
    # Scores count rounds as softmax, so the selected layers rank first.
    ranking = sorted(range(3), key=lambda layer: -result.scores[layer])
    assert set(ranking[:k]) == set(result.layers)


def test_stage_1_rounds_measure_the_aligned_student(context, tmp_path):
    context = new_context(context, tmp_path, iterative=True)
    result = selectors.stage1(context, 2, direction="add")
    stage = shorten_alignment_stage(context.training_recipe, context.options)
    all_linear = aligned_all_linear(context, stage)
    first, second = (each["layer"] for each in result.details["rounds"])
    with hybrid_from_linear(all_linear, context.all_softmax, [first, second]) as student:
        distance = context.held_out.hidden_distance(student)
    assert result.details["rounds"][1]["scores"][second] == pytest.approx(-distance, rel=1e-6)
    assert result.cost.student_tokens == 512
    removed = selectors.stage1(context, 1, direction="remove")
    (kept,) = removed.layers
    gone = [layer for layer in range(3) if layer != kept]
    with swap_mixers(context.all_softmax, all_linear, gone) as student:
        distance = context.held_out.hidden_distance(student)
    last = removed.details["rounds"][-1]
    assert last["scores"][last["layer"]] == pytest.approx(distance, rel=1e-6)


def test_iterative_addition_can_differ_from_top_k(context, tmp_path, monkeypatch):
    """Layer 1 is second best alone, but layer 2 helps more after layer 0."""
    alone = {0: 3.0, 1: 2.0, 2: 1.0}

    class Scripted:
        def __init__(self, context, stage, direction, all_linear, layers, before=()):
            self.train_states, self._layers, self._before = [], layers, before

        def step(self, data, number):
            pass

        def scores(self):
            bonus = 5.0 if 0 in self._before else 0.0
            return {"add": {layer: alone[layer] + bonus * (layer == 2) for layer in self._layers}}

    monkeypatch.setattr("evalsuite.distill.selection.one_swap.training.DistilledCandidates", Scripted)
    at_once = selectors.stage2(new_context(context, tmp_path / "a", early_stop=False), 2, direction="add")
    one_by_one = selectors.stage2(
        new_context(context, tmp_path / "b", early_stop=False, iterative=True), 2, direction="add"
    )
    assert at_once.layers == (0, 1)
    assert one_by_one.layers == (0, 2)
    assert one_by_one.scores == (2.0, 0.0, 1.0)


@pytest.mark.long
def test_interrupted_rounds_resume_exactly(context, tmp_path, monkeypatch):
    """Interrupted in the second round: the first is read from its log, the second is repeated."""
    complete = selectors.stage2(
        new_context(context, tmp_path / "complete", early_stop=False, iterative=True), 2, direction="add"
    )
    step, calls = DistilledCandidates.step, []

    def dies(self, data, number):
        calls.append(len(self.train_states))
        if calls[-1] == 2 and number == 2:
            raise KeyboardInterrupt
        step(self, data, number)

    broken = {"early_stop": False, "iterative": True}
    with monkeypatch.context() as patch:
        patch.setattr(DistilledCandidates, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            selectors.stage2(new_context(context, tmp_path / "broken", **broken), 2, direction="add")
    counted = []

    def counting(self, data, number):
        counted.append(len(self.train_states))
        step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(DistilledCandidates, "step", counting)
        resumed = selectors.stage2(new_context(context, tmp_path / "broken", **broken), 2, direction="add")
    assert set(counted) == {2}
    assert resumed.details["rounds"] == complete.details["rounds"]
    assert resumed.layers == complete.layers


def test_averaged_rounds_use_both_directions(context, tmp_path):
    context = new_context(context, tmp_path, early_stop=False, iterative=True)
    result = selectors.averaged(context, 1, stage=1)
    assert len(result.layers) == 1
    assert selectors.ROUNDS_MEASURE["add"] != selectors.ROUNDS_MEASURE["remove"]
    assert set(result.details) == {"add", "remove"}

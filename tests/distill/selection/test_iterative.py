"""Iterative one-swap selection: start of each round, decisions, cost and resumption."""

import pytest

from evalsuite.distill.selection import one_swap_training
from evalsuite.distill.selection.hybrids import with_blocks_of, with_mixers_of
from evalsuite.distill.selection.one_swap_training import DistilledCandidates
from evalsuite.distill.selection.selectors.one_swap import ROUNDS_MEASURE
from tests.distill.selection.conftest import small_selector
from tests.distill.selection.test_one_swap import distillation, new_context, selected, steps

IN_ROUNDS = {"early_stop": False, "iterative": True}


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
    context = new_context(context, tmp_path)
    result = selected("ga_s2" if direction == "add" else "gr_s2", context, k, **IN_ROUNDS)
    first = distillation(context, direction)
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
    context = new_context(context, tmp_path)
    result = selected("ga_s1", context, 2, iterative=True)
    all_linear = small_selector("ga_s1").aligned_student(context)
    first, second = (each["layer"] for each in result.details["rounds"])
    student = with_blocks_of(all_linear, context.teacher, [first, second])
    distance = context.held_out.hidden_distances({0: student})[0]
    assert result.details["rounds"][1]["scores"][second] == pytest.approx(-distance, rel=1e-6)
    assert result.cost.student_tokens == 512
    removed = selected("gr_s1", context, iterative=True)
    (kept,) = removed.layers
    gone = [layer for layer in range(3) if layer != kept]
    student = with_mixers_of(context.teacher, all_linear, gone)
    distance = context.held_out.hidden_distances({0: student})[0]
    last = removed.details["rounds"][-1]
    assert last["scores"][last["layer"]] == pytest.approx(distance, rel=1e-6)


def test_iterative_addition_can_differ_from_top_k(context, tmp_path, monkeypatch):
    """Layer 1 is second best alone, but layer 2 helps more after layer 0."""
    alone = {0: 3.0, 1: 2.0, 2: 1.0}

    class Scripted:
        def __init__(self, context, stage, direction, all_linear, layers, before=()):
            self.train_states, self._layers, self._before = [], layers, before

        def step(self, data, number):
            return {}

        def scores(self):
            bonus = 5.0 if 0 in self._before else 0.0
            return {"add": {layer: alone[layer] + bonus * (layer == 2) for layer in self._layers}}

    monkeypatch.setattr(one_swap_training, "DistilledCandidates", Scripted)
    at_once = selected("ga_s2", new_context(context, tmp_path / "a"), 2, early_stop=False)
    one_by_one = selected("ga_s2", new_context(context, tmp_path / "b"), 2, **IN_ROUNDS)
    assert at_once.layers == (0, 1)
    assert one_by_one.layers == (0, 2)
    assert one_by_one.scores == (2.0, 0.0, 1.0)


@pytest.mark.long
def test_interrupted_rounds_resume_exactly(context, tmp_path, monkeypatch):
    """Interrupted in the second round: the first is read from its log, the second is repeated."""
    complete = selected("ga_s2", new_context(context, tmp_path / "complete"), 2, **IN_ROUNDS)
    step, calls = DistilledCandidates.step, []

    def dies(self, data, number):
        calls.append(len(self.train_states))
        if calls[-1] == 2 and number == 2:
            raise KeyboardInterrupt
        return step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(DistilledCandidates, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            selected("ga_s2", new_context(context, tmp_path / "broken"), 2, **IN_ROUNDS)
    counted = []

    def counting(self, data, number):
        counted.append(len(self.train_states))
        return step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(DistilledCandidates, "step", counting)
        resumed = selected("ga_s2", new_context(context, tmp_path / "broken"), 2, **IN_ROUNDS)
    assert set(counted) == {2}
    assert resumed.details["rounds"] == complete.details["rounds"]
    assert resumed.layers == complete.layers


def test_averaged_rounds_use_both_directions(context, tmp_path):
    result = selected("avg_s1", new_context(context, tmp_path), iterative=True)
    assert len(result.layers) == 1
    assert ROUNDS_MEASURE["add"] != ROUNDS_MEASURE["remove"]
    assert set(result.details) == {"add", "remove"}

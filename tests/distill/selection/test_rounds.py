"""One layer a round: what each round starts from, what it decides, what it costs, and that it resumes."""

import pytest

from evalsuite.distill.selection import rounds, structural
from evalsuite.distill.selection.brief import aligned_trunk, distillation_pass
from evalsuite.distill.selection.hybrids import replaced, restored
from evalsuite.distill.selection.options import alignment_stage
from evalsuite.distill.selection.swaps import Distilled
from tests.distill.selection.test_passes import new_ground, steps


@pytest.mark.parametrize(("direction", "layers"), [("add", (0, 2)), ("remove", (0,))])
def test_a_later_round_keeps_what_the_first_decided(ground, direction, layers):
    """The candidate for layer 1 after another was decided: one more softmax layer, or one fewer."""
    candidates = Distilled(ground, ground.kd, direction, ground.trunk, [1], before=layers)
    (trainee,) = candidates.trainees
    softmax = [i for i, name in enumerate(trainee.model.config.mixers) if name == "softmax"]
    assert softmax == ([0, 1, 2] if direction == "add" else [2])
    for number, data in enumerate(steps(ground, ground.kd, 1)):
        candidates.step(data, number)
    assert set(candidates.scores()[direction]) == {1}


@pytest.mark.parametrize(("direction", "k"), [("add", 2), ("remove", 1)])
def test_rounds_of_stage_2_are_passes_over_what_is_left(ground, tmp_path, direction, k):
    ground = new_ground(ground, tmp_path, stop=False, iterative=True)
    outcome = structural.stage2(ground, k, direction=direction)
    first = distillation_pass(ground, direction)
    scores = first.run(1, direction)[-1].scores
    decided = scores.index(max(scores) if direction == "add" else min(scores))
    made = outcome.details["rounds"]
    assert made[0]["layer"] == decided
    assert made[0]["scores"] == list(scores)
    assert made[1]["scores"][decided] is None
    others = {layer for layer in range(3) if layer != decided}
    second = made[1]["layer"]
    assert second in others
    expected = {decided, second} if direction == "add" else others - {second}
    assert set(outcome.layers) == expected
    # Three candidates, then two; each the whole stage, on one alignment.
    stage = ground.kd
    whole = stage.steps * stage.batch * stage.length
    assert outcome.cost.student_tokens == 512 + 5 * whole
    assert outcome.cost.teacher_tokens == 512 + 2 * whole
    assert outcome.cost.separate_student_tokens == 5 * (512 + whole)
    assert not list(tmp_path.rglob("layer-*.safetensors"))
    # A round's number says how long a layer was softmax, so that the kept ones come first.
    ranked = sorted(range(3), key=lambda layer: -outcome.scores[layer])
    assert set(ranked[:k]) == set(outcome.layers)


def test_rounds_of_stage_1_measure_the_aligned_trunk(ground, tmp_path):
    ground = new_ground(ground, tmp_path, iterative=True)
    outcome = structural.stage1(ground, 2, direction="add")
    stage = alignment_stage(ground.readable, ground.options)
    trunk = aligned_trunk(ground, stage)
    first, second = (each["layer"] for each in outcome.details["rounds"])
    with restored(trunk, ground.full, [first, second]) as student:
        distance = ground.held_out.hidden_distance(student)
    assert outcome.details["rounds"][1]["scores"][second] == pytest.approx(-distance, rel=1e-6)
    assert outcome.cost.student_tokens == 512
    removed = structural.stage1(ground, 1, direction="remove")
    (kept,) = removed.layers
    gone = [layer for layer in range(3) if layer != kept]
    with replaced(ground.full, trunk, gone) as student:
        distance = ground.held_out.hidden_distance(student)
    last = removed.details["rounds"][-1]
    assert last["scores"][last["layer"]] == pytest.approx(distance, rel=1e-6)


def test_greedy_addition_may_choose_others_than_the_top_k(ground, tmp_path, monkeypatch):
    """Layer 1 is second best alone, but layer 2 helps more once layer 0 is there."""
    alone = {0: 3.0, 1: 2.0, 2: 1.0}

    class Scripted:
        def __init__(self, ground, stage, direction, trunk, layers, before=()):
            self.trainees, self._layers, self._before = [], layers, before

        def step(self, data, number):
            pass

        def scores(self):
            bonus = 5.0 if 0 in self._before else 0.0
            return {"add": {layer: alone[layer] + bonus * (layer == 2) for layer in self._layers}}

    monkeypatch.setattr("evalsuite.distill.selection.brief.Distilled", Scripted)
    at_once = structural.stage2(new_ground(ground, tmp_path / "a", stop=False), 2, direction="add")
    one_by_one = structural.stage2(
        new_ground(ground, tmp_path / "b", stop=False, iterative=True), 2, direction="add"
    )
    assert at_once.layers == (0, 1)
    assert one_by_one.layers == (0, 2)
    assert one_by_one.scores == (2.0, 0.0, 1.0)


def test_interrupted_rounds_go_on_exactly(ground, tmp_path, monkeypatch):
    """Killed in the second round: the first is taken from its journal, the second made again."""
    whole = structural.stage2(
        new_ground(ground, tmp_path / "whole", stop=False, iterative=True), 2, direction="add"
    )
    step, calls = Distilled.step, []

    def dies(self, data, number):
        calls.append(len(self.trainees))
        if calls[-1] == 2 and number == 2:
            raise KeyboardInterrupt
        step(self, data, number)

    broken = {"stop": False, "iterative": True}
    with monkeypatch.context() as patch:
        patch.setattr(Distilled, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            structural.stage2(new_ground(ground, tmp_path / "broken", **broken), 2, direction="add")
    counted = []

    def counting(self, data, number):
        counted.append(len(self.trainees))
        step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(Distilled, "step", counting)
        resumed = structural.stage2(new_ground(ground, tmp_path / "broken", **broken), 2, direction="add")
    assert set(counted) == {2}
    assert resumed.details["rounds"] == whole.details["rounds"]
    assert resumed.layers == whole.layers


def test_averaged_rounds_use_both_orders(ground, tmp_path):
    ground = new_ground(ground, tmp_path, stop=False, iterative=True)
    outcome = structural.averaged(ground, 1, stage=1)
    assert len(outcome.layers) == 1
    assert rounds.MEASURE["add"] != rounds.MEASURE["remove"]
    assert set(outcome.details) == {"add", "remove"}

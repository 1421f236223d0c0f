"""One-swap passes: side by side is as alone, interrupted is as whole, stopped early is stopped right."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill.selection import passes, structural
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.passes import OneSwapPass
from evalsuite.distill.selection.separate import separate_run
from evalsuite.distill.selection.sets import one_swap_jaccard, ranks, top_layers
from evalsuite.distill.selection.swaps import Aligned, Distilled
from evalsuite.foundation import CheckpointError, RunFolderError, read_jsonl


def new_ground(ground: Ground, folder, **changes) -> Ground:
    """The same ground in a fresh folder, on the trunk that is already there."""
    options = ground.options.model_copy(update={"trunk": str(ground.trunk_path), **changes})
    return Ground(ground.recipe, options, folder, device="cpu", quiet=True)


def steps(ground: Ground, stage, count: int):
    data = iter(passes.StageData(ground.readable, stage, ground.tokenizer))
    return [next(data) for _ in range(count)]


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_candidates_side_by_side_are_as_each_alone(ground, direction):
    """They share the teacher's forward and every frozen parameter, and nothing else."""
    stage = ground.kd
    together = Distilled(ground, stage, direction, ground.trunk, [0, 1, 2])
    alone = Distilled(ground, stage, direction, ground.trunk, [1])
    for number, data in enumerate(steps(ground, stage, 2)):
        together.step(data, number)
        alone.step(data, number)
    both = together.scores()[direction]
    assert both[1] == alone.scores()[direction][1]
    assert len(set(both.values())) == 3


def test_what_one_candidate_learns_leaves_the_trunk_alone(ground):
    before = {name: tensor.clone() for name, tensor in ground.trunk.state_dict().items()}
    candidates = Distilled(ground, ground.kd, "add", ground.trunk, [0, 2])
    candidates.step(steps(ground, ground.kd, 1)[0], 0)
    for name, tensor in ground.trunk.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert ground.trunk.config.mixers == ["gated_deltanet"] * 3


def test_alignment_of_a_layer_does_not_depend_on_which_other_layer_is_swapped(ground):
    """Why stage 1 is done once: the mixers that a one-swap student would align, one by one, are these."""
    stage = ground.readable.stages[0]
    shared = Aligned(ground, stage, [0, 1, 2])
    data = steps(ground, stage, 2)
    for number, step in enumerate(data):
        shared.step(step, number)
    with structural_swap(ground) as student:
        own = passes_aligned(ground, stage, student)
        for number, step in enumerate(data):
            own.step(step, number)
    for layer in (0, 2):
        mine = own.model.model.layers[layer].self_attn.state_dict()
        for name, tensor in shared.model.model.layers[layer].self_attn.state_dict().items():
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=0)


def structural_swap(ground: Ground):
    from evalsuite.distill.selection.hybrids import restored

    return restored(ground.trunk, ground.full, [1])


def passes_aligned(ground: Ground, stage, student):
    stand_in = SimpleNamespace(
        trunk=student,
        cast=ground.cast,
        device=ground.device,
        teacher=ground.teacher,
        held_out=ground.held_out,
    )
    return Aligned(stand_in, stage, [])


@pytest.mark.parametrize("selector", ["stage1", "stage2"])
def test_an_interrupted_pass_goes_on_exactly(ground, tmp_path, monkeypatch, selector):
    """Killed between two snapshots, with the state of the one before: the same scores to the last bit."""
    function = getattr(structural, selector)
    recipe = ground.recipe.model_copy(
        update={"saving": ground.recipe.saving.model_copy(update={"state_seconds": 0.0})}
    )
    ground = new_ground(replace_recipe(ground, recipe), tmp_path / "whole", stop=False)
    whole = function(ground, 1, direction="add")
    assert len(whole.history) >= 4
    broken = new_ground(ground, tmp_path / "broken")
    kind = Aligned if selector == "stage1" else Distilled
    step = kind.step

    def dies(self, data, number):
        if number == 2:
            raise KeyboardInterrupt
        step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            function(broken, 1, direction="add")
    journals = list((tmp_path / "broken").rglob("journal.jsonl"))
    assert any(len(list(read_jsonl(path))) == 3 for path in journals)
    resumed = function(new_ground(ground, tmp_path / "broken"), 1, direction="add")
    assert [s.scores for s in resumed.history] == [s.scores for s in whole.history]
    assert resumed.layers == whole.layers
    # What was made after the last whole state is made again, not counted twice.
    assert [s.step for s in resumed.history] == [s.step for s in whole.history]


def replace_recipe(ground: Ground, recipe) -> Ground:
    made = Ground(recipe, ground.options, ground.work, device="cpu", quiet=True)
    assert made.trunk is not None
    return made


def test_rows_after_the_last_saved_state_are_forgotten(ground, tmp_path, monkeypatch):
    """State is saved seldom, so that a kill leaves snapshots of steps that are done again."""
    ground = new_ground(ground, tmp_path, stop=False)
    step = Distilled.step

    def dies(self, data, number):
        if number == 2:
            raise KeyboardInterrupt
        step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(Distilled, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            structural.stage2(ground, 1, direction="add")
    outcome = structural.stage2(new_ground(ground, tmp_path), 1, direction="add")
    assert [s.step for s in outcome.history] == [1, 2, 3, 4]
    (journal,) = tmp_path.glob("kd-add-*/journal.jsonl")
    assert [row["step"] for row in list(read_jsonl(journal))[1:]] == [1, 2, 3, 4]


class Scripted:
    """Candidates whose scores are written beforehand: best layers by snapshot."""

    def __init__(self, script: list[list[float]]) -> None:
        self.trainees, self._script, self.steps = [], iter(script), 0

    def step(self, data, number) -> None:
        self.steps += 1

    def scores(self) -> dict[str, dict[int, float]]:
        return {"add": dict(enumerate(next(self._script)))}


def scripted_pass(ground: Ground, script) -> tuple[OneSwapPass, Scripted]:
    stage = ground.kd.model_copy(update={"tokens": 128 * len(script)})
    candidates = Scripted(script)
    return OneSwapPass(ground, stage, lambda layers: candidates, name="scripted", about={}), candidates


def test_a_pass_stops_once_its_set_has_settled_and_no_sooner(ground, tmp_path):
    """Window 3, K = 1: noise, then layer 2 three times in a row, at step 5 of 9."""
    best = [0, 1, 2, 2, 2, 0, 1, 0, 1]
    script = [[float(layer == each) for layer in range(3)] for each in best]
    ground = new_ground(ground, tmp_path, window=3)
    run, candidates = scripted_pass(ground, script)
    history = run.run(1, "add", stop=True)
    assert [s.step for s in history] == [1, 2, 3, 4, 5]
    assert history[-1].layers == (2,)
    assert history[-1].tokens == 5 * 128 * 3
    assert candidates.steps == 5


def test_another_budget_goes_on_where_the_first_one_stopped(ground, tmp_path):
    """The journal holds every layer's score, so that K = 2 needs only what K = 1 did not see."""
    best = [(2, 0), (2, 1), (2, 0), (2, 1), (2, 1), (2, 1), (2, 0), (2, 0)]
    script = [[2.0 * (layer == a) + (layer == b) for layer in range(3)] for a, b in best]
    ground = new_ground(ground, tmp_path, window=3)
    run, candidates = scripted_pass(ground, script)
    assert run.run(1, "add", stop=True)[-1].step == 3
    assert candidates.steps == 3
    assert run.run(2, "add", stop=True)[-1].step == 6
    assert candidates.steps == 6
    assert run.run(1, "add", stop=True)[-1].step == 3
    assert candidates.steps == 6
    assert run.run(2, "add", stop=False)[-1].step == 8


def test_the_outcome_counts_what_was_spent_and_saved(ground, tmp_path):
    outcome = structural.stage2(new_ground(ground, tmp_path, window=2, similarity=0.1), 2, direction="add")
    stage = ground.kd
    per_step, aligned = stage.batch * stage.length, 512
    assert outcome.stopped
    steps_done = outcome.history[-1].step
    assert steps_done < stage.steps
    cost = outcome.cost
    assert cost.student_tokens == aligned + 3 * steps_done * per_step
    assert cost.teacher_tokens == aligned + steps_done * per_step
    assert cost.planned_tokens == aligned + 3 * stage.steps * per_step
    assert cost.separate_student_tokens == 3 * (aligned + stage.steps * per_step)
    window = outcome.details["window"]
    assert window["snapshots"] == 2
    assert window["jaccard"] >= min(1.0, one_swap_jaccard(2))
    assert len(outcome.scores) == 3


def test_without_kept_states_a_later_pass_still_starts_from_the_aligned_trunk(ground, tmp_path):
    """The candidates are not saved, the alignment that they start from is."""
    kept = structural.stage2(new_ground(ground, tmp_path / "a", stop=False), 1, direction="add")
    settings = {"stop": False, "keep_state": False}
    folder = tmp_path / "b"
    structural.stage2(new_ground(ground, folder, **settings), 1, direction="add")
    (journal,) = folder.glob("kd-add-*/journal.jsonl")
    assert not list(folder.rglob("layer-*.safetensors"))
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2]))
    again = structural.stage2(new_ground(ground, folder, **settings), 1, direction="add")
    assert [s.scores for s in again.history] == [s.scores for s in kept.history]


def test_the_seconds_of_a_pass_are_those_up_to_its_stop(ground, tmp_path):
    """A pass that ran on for another budget did not become dearer for this one."""
    script = [[0.0, 0.0, 1.0]] * 6
    ground = new_ground(ground, tmp_path, window=3)
    run, _ = scripted_pass(ground, script)
    run.run(1, "add", stop=False)
    rows = run.journal.rows
    assert run.seconds == rows[-1]["seconds"]
    assert len(run.run(1, "add", stop=True)) == 3
    assert run.seconds == rows[2]["seconds"] < rows[-1]["seconds"]


def test_a_student_trained_by_itself_scores_as_in_the_pass(ground, tmp_path):
    ground = new_ground(ground, tmp_path, stop=False)
    together = structural.stage2(ground, 1, direction="add")
    alone = separate_run(ground, 1)
    assert alone["importance"] == pytest.approx(together.scores[1], rel=1e-6)
    assert alone["tokens"] * 3 == together.cost.separate_student_tokens
    assert alone["seconds"] > 0


def test_a_history_of_another_teacher_or_of_other_settings_is_refused(ground, tmp_path):
    ground = new_ground(ground, tmp_path)
    journal = ground.journal("probe", {"a": 1})
    journal.append({"value": 1})
    assert ground.journal("probe", {"a": 1}).rows == [{"value": 1}]
    ground.info = replace(ground.info, weights_id="f" * 16)
    with pytest.raises(RunFolderError, match=r"history of another teacher.*ffffffffffffffff"):
        ground.journal("probe", {"a": 1})


def test_a_torn_state_is_named(ground, tmp_path, monkeypatch):
    ground = new_ground(ground, tmp_path, stop=False)
    structural.stage2(ground, 1, direction="add")
    (state,) = tmp_path.glob("kd-add-*/state/*/layer-1.safetensors")
    assert load_file(state)
    state.write_bytes(state.read_bytes()[:100])
    (journal,) = tmp_path.glob("kd-add-*/journal.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:3]))
    with pytest.raises(CheckpointError, match=r"delete .*kd-add"):
        structural.stage2(new_ground(ground, tmp_path), 1, direction="add")


@pytest.mark.parametrize("number", [1, 2])
def test_averaged_ranks_share_one_alignment(ground, tmp_path, number):
    ground = new_ground(ground, tmp_path, stop=False)
    outcome = structural.averaged(ground, 2, stage=number)
    one = structural.stage1 if number == 1 else structural.stage2
    add, remove = (one(ground, 2, direction=each) for each in ("add", "remove"))
    mean = [-(a + b) / 2 for a, b in zip(ranks(add.scores), ranks(remove.scores), strict=True)]
    assert outcome.scores == tuple(mean)
    assert outcome.layers == top_layers(mean, 2)
    assert outcome.cost.student_tokens == add.cost.student_tokens + remove.cost.student_tokens - 512

"""One-swap training: joint candidates, resumption, early stop and cost."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evalsuite.distill import load_recipe
from evalsuite.distill.data.loader import StageDataLoader
from evalsuite.distill.selection import load_selector
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.hybrids import with_blocks_of
from evalsuite.distill.selection.layer_sets import StopRule, one_swap_jaccard, ranks, top_layers
from evalsuite.distill.selection.one_swap_training import (
    AlignedCandidates,
    DistilledCandidates,
    OneSwapTraining,
)
from evalsuite.distill.selection.options import ContextOptions
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.training import checkpoint, loop
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.loop import TrainingError
from evalsuite.foundation import CheckpointError, RunFolderError, read_jsonl
from evalsuite.reports.studies.selection.single_candidate import train_single_candidate
from tests.distill.selection.conftest import small_selector, with_models_of
from tests.distill.training.saved_states import read_state


def selected(name: str, context: SelectionContext, k: int = 1, **options) -> SelectionResult:
    """The result of a selector with small settings."""
    return small_selector(name, **options).select(context, k)


def distillation(context: SelectionContext, direction="add") -> OneSwapTraining:
    return small_selector("ga_s2").distillation(context, context.kd_stage, direction)


def new_context(context: SelectionContext, folder, recipe=None) -> SelectionContext:
    """A context with another work folder, the existing all-linear student and, if given, another recipe."""
    options = context.options.model_copy(update={"all_linear": str(context.all_linear_path)})
    made = SelectionContext(recipe or context.recipe, options, folder, device="cpu", quiet=True)
    return with_models_of(context, made)


@pytest.fixture(scope="module")
def trained(opened, tmp_path_factory) -> tuple[Path, SelectionResult]:
    """The work folder of a training of all candidates without an early stop, and its result."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, selected("ga_s2", new_context(opened, folder), early_stop=False)


@pytest.fixture
def aligned(trained, tmp_path) -> Path:
    """A work folder with the alignment only."""
    (folder,) = trained[0].glob("align-*")
    shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path


def steps(context: SelectionContext, stage, count: int):
    data = iter(StageDataLoader(context.open_sources(), stage))
    return [next(data) for _ in range(count)]


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_joint_and_separate_candidates_agree(context, direction):
    """Candidates share only the teacher forward and frozen parameters."""
    stage = context.kd_stage
    together = DistilledCandidates(context, stage, direction, context.all_linear, [0, 1, 2])
    alone = DistilledCandidates(context, stage, direction, context.all_linear, [1])
    for number, data in enumerate(steps(context, stage, 2)):
        together.step(data, number)
        alone.step(data, number)
    both = together.scores()[direction]
    assert both[1] == alone.scores()[direction][1]
    assert len(set(both.values())) == 3


def test_training_candidates_leaves_the_all_linear_student_unchanged(context):
    before = {name: tensor.clone() for name, tensor in context.all_linear.state_dict().items()}
    candidates = DistilledCandidates(context, context.kd_stage, "add", context.all_linear, [0, 2])
    candidates.step(steps(context, context.kd_stage, 1)[0], 0)
    for name, tensor in context.all_linear.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert context.all_linear.config.mixers == ["gated_deltanet"] * 3


def test_alignment_of_a_layer_is_independent_of_other_swaps(context):
    """Stage 1 is shared because a one-swap student would align the same mixers."""
    stage = context.training_recipe.stages[0]
    shared = AlignedCandidates(context, stage, [0, 1, 2])
    data = steps(context, stage, 2)
    for number, step in enumerate(data):
        shared.step(step, number)
    student = layer_1_restored(context)
    own = aligned_from(context, stage, student)
    for number, step in enumerate(data):
        own.step(step, number)
    for layer in (0, 2):
        mine = own.model.model.layers[layer].self_attn.state_dict()
        for name, tensor in shared.model.model.layers[layer].self_attn.state_dict().items():
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=0)


def test_a_candidate_that_has_diverged_is_not_scored(context, tmp_path, monkeypatch):
    """The loss of layer 1 is not a number in the second step; its gradients and weights stay as they are."""
    fresh = new_context(context, tmp_path)
    real = DistilledCandidates.step

    def step(self, data, number):
        output = real(self, data, number)
        if number == 1:
            output["loss"][1] = float("nan")
        return output

    monkeypatch.setattr(DistilledCandidates, "step", step)
    run = distillation(fresh)
    with pytest.raises(TrainingError, match=r"layer-1: the loss is nan"):
        run.run(1, "add")
    assert [row["step"] for row in run.progress_log.rows] == [1]


def layer_1_restored(context: SelectionContext):
    return with_blocks_of(context.all_linear, context.teacher, [1])


def aligned_from(context: SelectionContext, stage, student):
    stand_in = SimpleNamespace(
        all_linear=student,
        models=context.models,
        device=context.device,
        teacher=context.teacher,
        held_out=context.held_out,
    )
    return AlignedCandidates(stand_in, stage, [])


@pytest.mark.parametrize("selector", ["ga_s1", pytest.param("ga_s2", marks=pytest.mark.long)])
def test_interrupted_training_resumes_exactly(context, tmp_path, monkeypatch, selector):
    """Interrupted between two snapshots: resuming from the previous state gives bit-identical scores."""
    recipe = context.recipe.model_copy(
        update={"checkpoint": context.recipe.checkpoint.model_copy(update={"state_interval_seconds": 0.0})}
    )
    context = new_context(context, tmp_path / "complete", recipe)
    options = {"early_stop": False} if selector == "ga_s2" else {}
    complete = selected(selector, context, **options)
    assert len(complete.history) >= 4
    broken = new_context(context, tmp_path / "broken")
    kind = AlignedCandidates if selector == "ga_s1" else DistilledCandidates
    step = kind.step

    def dies(self, data, number):
        if number == 2:
            raise KeyboardInterrupt
        return step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            selected(selector, broken, **options)
    logs = list((tmp_path / "broken").rglob("progress.jsonl"))
    assert any(len(list(read_jsonl(path))) == 3 for path in logs)
    resumed = selected(selector, new_context(context, tmp_path / "broken"), **options)
    assert [s.scores for s in resumed.history] == [s.scores for s in complete.history]
    assert resumed.layers == complete.layers
    # Steps after the last complete state are repeated, not counted twice.
    assert [s.step for s in resumed.history] == [s.step for s in complete.history]


def test_rows_after_the_last_saved_state_are_dropped(context, aligned, monkeypatch):
    """Infrequent saves: an interruption leaves snapshots of steps that are repeated."""
    context = new_context(context, aligned)
    step = DistilledCandidates.step

    def dies(self, data, number):
        if number == 2:
            raise KeyboardInterrupt
        return step(self, data, number)

    with monkeypatch.context() as patch:
        patch.setattr(DistilledCandidates, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            selected("ga_s2", context, early_stop=False)
    result = selected("ga_s2", new_context(context, aligned), early_stop=False)
    assert [s.step for s in result.history] == [1, 2, 3, 4]
    (progress_log,) = aligned.glob("kd-add-*/progress.jsonl")
    assert [row["step"] for row in list(read_jsonl(progress_log))[1:]] == [1, 2, 3, 4]


def test_a_signal_saves_the_candidates_after_their_step(context, aligned, monkeypatch):
    step, numbers = DistilledCandidates.step, []

    def stepping(self, data, number):
        numbers.append(number)
        if numbers == [0, 1]:
            signal.raise_signal(signal.SIGTERM)
        return step(self, data, number)

    monkeypatch.setattr(DistilledCandidates, "step", stepping)
    with pytest.raises(KeyboardInterrupt):
        selected("ga_s2", new_context(context, aligned), early_stop=False)
    (state,) = aligned.glob("kd-add-*/state")
    assert read_state(state)[0].step == 2
    result = selected("ga_s2", new_context(context, aligned), early_stop=False)
    assert numbers == [0, 1, 2, 3]
    assert [snapshot.step for snapshot in result.history] == [1, 2, 3, 4]


class Scripted:
    """Candidates with predefined scores per snapshot."""

    def __init__(self, script: list[list[float]]) -> None:
        self.train_states, self._script, self.steps = [], iter(script), 0

    def step(self, data, number) -> dict[str, torch.Tensor]:
        self.steps += 1
        return {}

    def scores(self) -> dict[str, dict[int, float]]:
        return {"add": dict(enumerate(next(self._script)))}


def scripted_training(context: SelectionContext, script) -> tuple[OneSwapTraining, Scripted]:
    stage = context.kd_stage.model_copy(update={"tokens": 128 * len(script)})
    candidates = Scripted(script)
    run = OneSwapTraining(
        context, stage, lambda layers: candidates, name="scripted", about={}, snapshot_interval=1
    )
    return run, candidates


def test_early_stop_at_the_first_stable_window(context, tmp_path):
    """Window 3, K = 1: noise, then layer 2 three times in a row, at step 5 of 9."""
    best = [0, 1, 2, 2, 2, 0, 1, 0, 1]
    script = [[float(layer == each) for layer in range(3)] for each in best]
    context = new_context(context, tmp_path)
    run, candidates = scripted_training(context, script)
    history = run.run(1, "add", StopRule(window=3))
    assert [s.step for s in history] == [1, 2, 3, 4, 5]
    assert history[-1].layers == (2,)
    assert history[-1].tokens == 5 * 128 * 3
    assert candidates.steps == 5


def test_another_budget_extends_the_training(context, tmp_path):
    """The log has the scores of all layers, so K = 2 trains only the steps beyond K = 1."""
    best = [(2, 0), (2, 1), (2, 0), (2, 1), (2, 1), (2, 1), (2, 0), (2, 0)]
    script = [[2.0 * (layer == a) + (layer == b) for layer in range(3)] for a, b in best]
    context = new_context(context, tmp_path)
    run, candidates = scripted_training(context, script)
    assert run.run(1, "add", StopRule(window=3))[-1].step == 3
    assert candidates.steps == 3
    assert run.run(2, "add", StopRule(window=3))[-1].step == 6
    assert candidates.steps == 6
    assert run.run(1, "add", StopRule(window=3))[-1].step == 3
    assert candidates.steps == 6
    assert run.run(2, "add")[-1].step == 8


def test_an_alignment_whose_state_was_not_saved_is_trained_again(context, tmp_path, monkeypatch):
    """Its log is complete, so that nothing else would tell the student from an aligned one."""
    selector = small_selector("ga_s2")
    wanted = selector.aligned_student(new_context(context, tmp_path / "complete")).state_dict()

    def full(self, train_state):
        raise RunFolderError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", full)
        with pytest.raises(RunFolderError):
            selector.aligned_student(new_context(context, tmp_path / "broken"))
    found = selector.aligned_student(new_context(context, tmp_path / "broken")).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("gigabytes", "stops", "free", "saved", "says"),
    [
        (0, False, 1e12, [3], ""),
        (0, True, 1e12, [3, 4], ""),
        (16, False, 1e12, [5], "3 students takes 16 GB and is saved after 8 min"),
        (16, True, 1e12, [], "8 min"),
        (16, False, 30e9, [], "16 GB and is not saved: 30 GB of the disk are free for two"),
    ],
)
def test_states_are_saved_where_training_is_worth_it(
    context, tmp_path, monkeypatch, caplog, gigabytes, stops, free, saved, says
):
    """Steps of 100 s after a build of 1,000, states at most every 300; nothing reads one of all six steps."""
    now, found = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(checkpoint, "time", clock)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))

    def save(self, train_state, *, alone=False):
        found.append(train_state.progress.step)
        self.begin_interval()

    monkeypatch.setattr(Checkpointer, "save", save)
    best = [2] * 6 if stops else [0, 1, 2] * 2
    script = [[float(layer == each) for layer in range(3)] for each in best]
    run, candidates = scripted_training(new_context(context, tmp_path), script)
    weight = torch.empty(int(gigabytes * 1e9) // 12, device="meta")
    candidates.train_states = [SimpleNamespace(label="all", sharded=False, optimizer_params={"w": weight})]

    def build(layers):
        now[0] += 1000
        return candidates

    def step(data, number):
        now[0] += 100
        return {"loss": torch.ones(1)}

    run._build, candidates.step = build, step
    run.run(1, "add", StopRule(window=4))
    assert found == saved
    assert says in caplog.text
    assert bool(says) == bool(caplog.text)


def test_cost_of_an_early_stop(context, aligned):
    result = selected("ga_s2", new_context(context, aligned), 2, window=2, stop_on_last_slot_tie=True)
    stage = context.kd_stage
    per_step, aligned = stage.tokens_per_step, 512
    assert result.stopped_early
    steps_done = result.history[-1].step
    assert steps_done < stage.steps
    cost = result.cost
    assert cost.student_tokens == aligned + 3 * steps_done * per_step
    assert cost.teacher_tokens == aligned + steps_done * per_step
    assert cost.tokens_without_early_stop == aligned + 3 * stage.steps * per_step
    assert cost.tokens_without_sharing == 3 * (aligned + stage.steps * per_step)
    window = result.details["window"]
    assert window["snapshots"] == 2
    assert window["jaccard"] >= min(1.0, one_swap_jaccard(2))
    assert len(result.scores) == 3


@pytest.mark.long
def test_save_state_false_still_saves_the_alignment(context, tmp_path):
    """Candidates are not saved, but the alignment is."""
    saved = selected("ga_s2", new_context(context, tmp_path / "a"), early_stop=False)
    settings = {"early_stop": False, "save_state": False}
    folder = tmp_path / "b"
    selected("ga_s2", new_context(context, folder), **settings)
    (progress_log,) = folder.glob("kd-add-*/progress.jsonl")
    assert not list(folder.glob("kd-add-*/state"))
    lines = progress_log.read_text().splitlines(keepends=True)
    progress_log.write_text("".join(lines[:2]))
    again = selected("ga_s2", new_context(context, folder), **settings)
    assert [s.scores for s in again.history] == [s.scores for s in saved.history]


def test_seconds_count_up_to_the_early_stop(context, tmp_path):
    """Training that was extended for another budget does not add to this one's time."""
    script = [[0.0, 0.0, 1.0]] * 6
    context = new_context(context, tmp_path)
    run, _ = scripted_training(context, script)
    run.run(1, "add")
    rows = run.progress_log.rows
    assert run.seconds == rows[-1]["seconds"]
    assert len(run.run(1, "add", StopRule(window=3))) == 3
    assert run.seconds == rows[2]["seconds"] < rows[-1]["seconds"]


def test_single_candidate_scores_as_in_joint_training(context, trained, aligned):
    _, together = trained
    alone = train_single_candidate(new_context(context, aligned), small_selector("ga_s2"), 1)
    assert alone["importance"] == pytest.approx(together.scores[1], rel=1e-6)
    assert alone["tokens"] * 3 == together.cost.tokens_without_sharing
    assert alone["seconds"] > 0


def test_progress_log_of_another_teacher_is_refused(context, tmp_path):
    context = new_context(context, tmp_path)
    progress_log = context.progress_log("probe", {"a": 1})
    progress_log.append({"value": 1})
    assert context.progress_log("probe", {"a": 1}).rows == [{"value": 1}]
    context.info = replace(context.info, weights_id="f" * 16)
    with pytest.raises(RunFolderError, match=r"belongs to another teacher.*ffffffffffffffff"):
        context.progress_log("probe", {"a": 1})


def test_damaged_state_is_reported(context, aligned, monkeypatch):
    context = new_context(context, aligned)
    selected("ga_s2", context, 2, window=2, stop_on_last_slot_tie=True)
    (state,) = aligned.glob("kd-add-*/state/*/__0_0.distcp")
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"delete .*kd-add"):
        selected("ga_s2", new_context(context, aligned), early_stop=False)


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.long)])
def test_averaged_ranks_share_one_alignment(context, tmp_path, number):
    context = new_context(context, tmp_path)
    options = {} if number == 1 else {"early_stop": False}
    result, add, remove = (
        selected(f"{each}_s{number}", context, 2, **options) for each in ("avg", "ga", "gr")
    )
    mean = [-(a + b) / 2 for a, b in zip(ranks(add.scores), ranks(remove.scores), strict=True)]
    assert result.scores == tuple(mean)
    assert result.layers == top_layers(mean, 2)
    assert result.cost.student_tokens == add.cost.student_tokens + remove.cost.student_tokens - 512


@pytest.mark.parametrize("trainable", ["mixer", "no_mlp"])
def test_candidates_have_fp32_copies_of_trained_parameters_only(recipe, context, work, trainable):
    """All other parameters are shared by all candidates, in the run dtype."""
    chosen = ContextOptions(all_linear=str(context.all_linear_path))
    half = SelectionContext(
        recipe.model_copy(update={"precision": "bf16"}), chosen, work, device="cpu", quiet=True
    )
    stage = half.kd_stage.model_copy(update={"trainable": trainable})
    candidates = DistilledCandidates(half, stage, "add", half.all_linear, [0, 2])
    for train_state in candidates.train_states:
        trained = sum(parameter.numel() for parameter in train_state.parameters.values())
        masters = train_state.master_weights.params
        assert masters.keys() == train_state.parameters.keys()
        assert sum(tensor.numel() for tensor in masters.values()) == trained
        assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
        assert {tensor.dtype for tensor in train_state.model.parameters()} == {torch.bfloat16}
    first, second = (train_state.model for train_state in candidates.train_states)
    shared = {id(parameter) for parameter in first.parameters()} & {id(p) for p in second.parameters()}
    assert first.model.layers[1].mlp.up_proj.weight.requires_grad is False
    assert id(first.model.layers[1].mlp.up_proj.weight) in shared


def test_the_early_stop_can_fire_before_the_end_of_a_default_pass():
    """The rule needs a full window of snapshots; a tenth of the stage's tokens has only one."""
    defaults = load_selector("ga_s2")
    window = defaults.window * defaults.snapshot_interval
    paper = load_recipe("kl-guided-2026").stages[1]
    assert defaults.shorten(paper).steps >= 2 * window
    assert load_selector("ga_s2", ["early_stop=false"]).shorten(paper).steps == paper.steps // 10
    assert load_selector("ga_s2", ["tokens=20M"]).shorten(paper).tokens == 20_000_000
    pocket = load_recipe("pocket").stages[-1]
    assert pocket.steps < 2 * window
    assert defaults.shorten(pocket).tokens == pocket.tokens // 10


def test_a_pass_too_short_for_the_early_stop_says_so(context, trained):
    context = new_context(context, trained[0])
    assert context.kd_stage.steps < 10
    notes = selected("ga_s2", context, window=10).notes
    assert len(notes) == 1
    assert "4 snapshots" in notes[0]
    assert "10" in notes[0]
    assert selected("ga_s2", context, window=3).notes == ()

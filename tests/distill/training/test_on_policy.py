"""Objective `on_policy`: what students write is bounded and seeded, and they learn from the teacher on it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill import Recipe, distill, dry_run
from evalsuite.distill.objectives.end_to_end import OnPolicyDistillation
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.training import trainer
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.rollouts import RolloutWriter, Writer, held, writable
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import ConfigError, DataError, read_jsonl
from evalsuite.models import build_student
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.torch import structure
from tests.distill.stage_data import interrupted, stage_data


@pytest.fixture
def on_policy(small_recipe: Any, stage: Any, teacher_folder: Path) -> Any:
    """Factory of recipes with one stage, by default four steps of four sequences, half of them rollouts."""

    def make(objective: str = "on_policy", mixers: tuple[str, ...] = ("gla",), **changes: Any) -> Recipe:
        given = {"packing": "documents", "loss_mask": "completion", "batch_size": 4, "tokens": 1024}
        if objective == "on_policy":
            given["max_new_tokens"] = 8
        stages = [stage("last", objective, **{**given, **changes})]
        return small_recipe(teacher_folder, stages=stages, student={"mixers": list(mixers)})

    return make


def logged(out: Path, student: str = "gla") -> list[dict[str, float]]:
    rows = [row for row in read_jsonl(out / "metrics.jsonl") if row["student"] == student]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.parametrize("loss", [{"direction": "jsd", "beta": 0.2}, {"direction": "reverse"}, {"top_k": 8}])
def test_without_rollouts_it_is_kd_bit_by_bit(on_policy: Any, tmp_path: Path, loss: dict[str, Any]) -> None:
    distill(on_policy(loss=loss, rollout_share=0.0), tmp_path / "a", quiet=True, device="cpu")
    distill(on_policy("kd", loss=loss), tmp_path / "b", quiet=True, device="cpu")
    for found, expected in zip(logged(tmp_path / "a"), logged(tmp_path / "b"), strict=True):
        assert (found["loss"], found["grad_norm"]) == (expected["loss"], expected["grad_norm"])
    weights = [load_file(tmp_path / name / "gla/model.safetensors") for name in ("a", "b")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_students_of_a_group_write_by_themselves(on_policy: Any, tmp_path: Path) -> None:
    """Their losses are (1 − share) · data + share · rollouts, and those of each alone."""
    mixers = ("gla", "linear_attention")
    distill(on_policy(mixers=mixers, rollout_share=0.75), tmp_path / "both", quiet=True, device="cpu")
    for mixer in mixers:
        recipe = on_policy(mixers=(mixer,), rollout_share=0.75)
        distill(recipe, tmp_path / mixer, quiet=True, device="cpu")
        assert logged(tmp_path / "both", mixer) == logged(tmp_path / mixer, mixer)
        for row in logged(tmp_path / mixer, mixer):
            expected = 0.25 * row["kl"] + 0.75 * row["rollout_kl"]
            assert row["loss"] == pytest.approx(expected, rel=1e-5)
            assert 0 < row["rollout_length"] <= 8


def test_the_loss_on_rollouts_falls(on_policy: Any, tmp_path: Path) -> None:
    recipe = on_policy(tokens=60 * 256, rollout_share=1.0, lr=3e-3, loss={"direction": "reverse"})
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    losses = [row["rollout_kl"] for row in logged(tmp_path / "out") if row["rollout_length"]]
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])


@pytest.mark.parametrize(("every", "steps", "before"), [(1, 3, 2), (2, 5, 3)])
def test_a_run_resumes_bit_by_bit(
    on_policy: Any, tmp_path: Path, every: int, steps: int, before: int
) -> None:
    recipe = on_policy(tokens=steps * 256, rollout_every=every, mixers=("gla", "linear_attention"))
    distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    saved = recipe.model_copy(update={"checkpoint": CheckpointConfig(state_interval_seconds=0)})
    interrupted(saved, tmp_path / "out", steps=before)
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    assert logged(tmp_path / "out") == logged(tmp_path / "whole")
    for student in recipe.labels:
        found, expected = (
            load_file(tmp_path / name / student / "model.safetensors") for name in ("out", "whole")
        )
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def written(on_policy: Any, teacher: Any, tokenizer: Any) -> tuple[OnPolicyDistillation, GlobalBatch, Any]:
    """A stage, a batch of it with the rollouts of one student, and what these are."""
    recipe = on_policy()
    stage: Any = recipe.stages[0]
    batch = next(stage_data(recipe, tokenizer, with_prompts=True))
    saved: dict[str, Any] = {}
    students = {"gla": build_student(teacher, "gla")}
    return stage, RolloutWriter(stage, students, tokenizer, 0, saved).add(batch, 0), saved["gla"]


def test_rollouts_are_bounded_and_alone_in_the_loss(written: Any) -> None:
    stage, batch, rows = written
    assert len(batch.prompts) == stage.num_rollouts == 2
    assert sum(each.input_ids.shape[0] for each in batch.micro_batches) == 2
    (rollouts,) = batch.rollouts
    (packed,) = rollouts.micro_batches
    assert packed.input_ids.shape[0] <= 2
    own = []
    for row in rows:
        assert sum(len(each["prompt"]) + len(each["tokens"]) for each in row) <= stage.seq_len + 1
        for each in row:
            assert len(each["tokens"]) <= stage.max_new_tokens
            own += [*each["tokens"], *([] if each["truncated"] else [None])]
    labels = packed.select(packed.labels).tolist()
    assert len(labels) == rollouts.num_tokens == len(own)
    tokens = sorted(token for token in own if token is not None)
    ends = len(own) - len(tokens)
    assert rollouts.count - rollouts.truncated == ends
    for token in tokens:
        labels.remove(token)
    assert len(set(labels)) <= 1


ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_one_batch_serves_every_step(on_policy: Any, teacher: Any, tokenizer: Any, device: str) -> None:
    """With the student's current weights, however many prompts there are: captured steps are kept."""
    (stage,) = on_policy().stages
    student = build_student(teacher, "gla").to(device)
    sampling = SamplingParams(max_new_tokens=8, temperature=1.0)
    requests = [GenerateRequest(tuple(range(1, length)), sampling, length) for length in (3, 9, 20, 5)]
    writer = Writer(stage, "gla", student, tokenizer)
    before, batches = writer.write(requests), []
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    for number in (2, 3, 4):
        found = writer.write(requests[:number])
        batches.append(writer._engine._last_batch)
        assert found == Writer(stage, "gla", student, tokenizer).write(requests[:number])
    assert found != before
    assert batches[0] is not None
    assert all(each is batches[0] for each in batches)


def test_as_many_rollouts_as_fit_in_their_order(on_policy: Any) -> None:
    stage = on_policy(max_new_tokens=20).stages[0]
    assert writable([[1] * 60, [1] * 5, [1] * 4], stage) == [([1] * 60, 5), ([1] * 4, 20)]
    row = [{"prompt": [1] * 20, "tokens": [2] * 4, "truncated": False} for _ in range(3)]
    # 24 tokens of each are read, of 64.
    assert held(row, stage.seq_len) == row[:2]
    long = {"prompt": [1] * 45, "tokens": [2] * 20, "truncated": True}
    assert held([long, *row], stage.seq_len) == [long]
    assert held([row[0], long, row[1]], stage.seq_len) == [row[0]]


def test_other_trainers_refuse_it(written: Any, teacher: Any) -> None:
    stage, batch, _ = written
    student = StudentTrainState("gla", build_student(teacher, "gla"))
    student.begin_stage(stage)
    step = TrainStep(teacher, [student], stage, ProcessGroup("cpu"))
    with pytest.raises(ConfigError, match="use objective kd here"):
        step(GlobalBatch(batch.micro_batches, batch.num_loss_tokens, batch.tokens, batch.state), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_share": 1.2}, "less than or equal to 1"),
        ({"rollout_share": -0.1}, "greater than or equal to 0"),
        ({"rollout_share": 0.1}, "is less than half a sequence"),
        ({"max_new_tokens": 64}, "leaves no room for a prompt"),
        ({"packing": "concat"}, "'packing' must be documents"),
        ({"loss_mask": "full"}, "'loss_mask' must be completion"),
        ({"loss": {"ce": 1.0}}, "cross-entropy would train students on what they write"),
        ({"loss": {"beta": 0.3}}, "'beta' is that of 'direction: jsd'"),
        ({"teacher_store": "store"}, "teacher_store"),
    ],
)
def test_settings_that_do_not_fit_are_refused(on_policy: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_policy(**changes)


def test_what_cannot_be_continued_is_refused(
    on_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = on_policy()
    messages = {
        "prose": "no prompts that students could continue",
        "needles": "longer than a sequence of 64 tokens",
    }
    for text, message in messages.items():
        source = {"kind": "pocket", "mixture": {text: 1.0}, "max_haystack_tokens": 300}
        size = {"seq_len": 512, "tokens": 2048} if text == "prose" else {}
        changed = Recipe.model_validate({**on_policy(**size).model_dump(), "data": {"pocket": source}})
        with pytest.raises(DataError, match=message):
            distill(changed, tmp_path / text, quiet=True, device="cpu")
    monkeypatch.setattr(structure, "unknown_structure", lambda *_: "its layers are unknown")
    with pytest.raises(ConfigError, match=r"'gla' cannot \(its layers are unknown\)"):
        distill(recipe, tmp_path / "b", quiet=True, device="cpu")
    monkeypatch.undo()


def test_several_processes_are_refused(on_policy: Any) -> None:
    trainer._check_processes(on_policy(rollout_share=0.0), 2)
    with pytest.raises(ConfigError, match="trains in one process, and this run has 2"):
        trainer._check_processes(on_policy(), 2)


def test_the_estimate_counts_generation_and_the_copy(on_policy: Any) -> None:
    none, half = (dry_run(on_policy(rollout_share=share), device="cpu").stages[0] for share in (0.0, 0.5))
    reused = dry_run(on_policy(rollout_every=4), device="cpu").stages[0]
    assert none.flops < reused.flops < half.flops
    assert none.memory < half.memory
    assert none.tokens == half.tokens

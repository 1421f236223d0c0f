"""Weights and states of optimizers stay finite, and no other weights are ever written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill import TrainingError, distill
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.divergence import diverged_students
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.models import build_student


def non_finite(folder: Path) -> list[str]:
    return [
        name
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not tensor.isfinite().all()
    ]


@pytest.mark.parametrize("lr", [1e20, 1e39])
def test_no_intermediate_checkpoint_has_weights_that_are_not_finite(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path, lr: float
) -> None:
    """At 1e20 the second step has no finite loss; at 1e39 the first update overflows."""
    flat = {"schedule": {"kind": "constant", "warmup_ratio": 0}, "optimizer": {"weight_decay": 0}}
    recipe = small_recipe(
        teacher_folder,
        student={"mixers": ["linear_attention"]},
        stages=[stage("a", "attention_output"), stage("b", "kd", lr=lr, **flat)],
        checkpoint={"save_tokens": 128},
    )
    with pytest.raises(TrainingError, match="linear_attention"):
        distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    folders = sorted((tmp_path / "out" / "checkpoints" / "linear_attention").iterdir())
    assert (
        {"a-128", "a-512"}
        <= {folder.name for folder in folders}
        <= {"a-128", "a-256", "a-384", "a-512", "b-640"}
    )
    assert [non_finite(folder) for folder in folders] == [[]] * len(folders)
    note = diverged_students(tmp_path / "out")["linear_attention"]
    assert (note["stage"], note["step"], note["tokens"]) == ("b", 1, 768 if lr == 1e20 else 640)
    assert not (tmp_path / "out" / "linear_attention").exists()


def test_a_finished_student_has_finite_weights(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    """The last update is followed by no loss; the other student is finished."""
    flat = {"schedule": {"kind": "constant", "warmup_ratio": 0}, "optimizer": {"weight_decay": 0}}
    recipe = small_recipe(
        teacher_folder,
        student={"mixers": ["linear_attention"]},
        stages=[stage("b", "kd", lr=1e39, tokens=128, **flat)],
    )
    with pytest.raises(TrainingError, match=r"stage 'b', step 1: linear_attention: its weights are"):
        distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    assert not (tmp_path / "out" / "linear_attention").exists()


OPTIMIZERS = [
    {},
    {"kind": "muon"},
    {"kind": "adamw_bf16"},
]


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("objective", ["kd", "attention_output"])
def test_gradients_that_are_not_finite_reach_no_weight_and_no_state(
    teacher: Any, stage: Any, objective: str, optimizer: dict[str, Any], max_grad_norm: float | None
) -> None:
    chosen = Stage.model_validate(
        stage("s", objective, max_grad_norm=max_grad_norm, optimizer=optimizer, tokens=1280)
    )
    state = StudentTrainState("a", build_student(teacher, "gla"), trainable_sets=[chosen.trainable_set])
    state.begin_stage(chosen)
    train_step = TrainStep(teacher, [state], chosen, ProcessGroup("cpu"))
    ids = torch.randint(0, 61, (2, 64), generator=torch.Generator().manual_seed(1))
    batch = GlobalBatch([MicroBatch(ids, ids)], ids.numel(), ids.numel(), {})
    train_step(batch, 0)
    before = {name: tensor.clone() for name, tensor in state.master_weights.params.items()}
    parameter = next(iter(state.optimizer_params.values()))
    real = state.reduce_grads
    for value in (float("nan"), float("inf")):

        def broken(group: Any, value: float = value) -> None:
            real(group)
            parameter.grad.view(-1)[0] = value

        state.reduce_grads = broken  # type: ignore[method-assign]
        output = train_step(batch, 1)
        assert not output["grad_norm"].isfinite().any()
        found = {**state.master_weights.params, **state.optimizer_state()}
        assert [name for name, tensor in found.items() if not tensor.isfinite().all()] == []
        if chosen.optimizer.kind == "adamw":
            weights = state.master_weights.params
            assert [name for name, tensor in before.items() if not torch.equal(weights[name], tensor)] == []


def test_save_tokens_at_the_end_of_a_stage(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    """The checkpoint at the end of a stage is `save_tokens`' if `save_each_stage` writes none."""
    recipe = small_recipe(
        teacher_folder,
        stages=[stage("a", "attention_output", tokens=256), stage("b", "kd", tokens=256)],
        checkpoint={"save_tokens": 128, "save_each_stage": False},
    )
    distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    folders = (tmp_path / "out" / "checkpoints" / "gated_deltanet").iterdir()
    assert {folder.name for folder in folders} == {"a-128", "a-256", "b-384"}

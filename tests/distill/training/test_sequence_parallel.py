"""Processes that share sequences train as one that has them whole."""

import gc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.distill import Recipe, distill
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import check_parts
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.placement import is_sharded
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.training.trainer import _check_processes
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import ConfigError, read_jsonl
from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.decoder.sequence_part import EarlierParts
from evalsuite.models.mixers import MIXERS, Mixer, StateKind
from evalsuite.models.sequence_parallel import SequenceParallel
from tests.distill.stage_data import interrupted
from tests.distill.training.two_processes import finish, needs_loopback, start

ROWS, LENGTH = 6, 48
WINDOW = {"sliding_window": {"window": 7}}
RECURRENT = [name for name, kind in MIXERS.items() if StateKind.RECURRENT in kind.state_kind]
STUDENTS: list[dict[str, Any]] = [
    *({"mixers": (RECURRENT * 2)[i : i + 3]} for i in range(0, len(RECURRENT), 3)),  # one a layer
    {"mixers": "sliding_window", "options": WINDOW},
    {"mixers": ["kda", "softmax", "gla"]},
    {"mixers": "retnet", "options": {"retnet": {"num_heads": 2, "rotary_base": 10000.0}}},
    {"mixers": ["gla", "kda", "gla"], "softmax_heads": {1: [1], 2: [0, 3]}},
    {
        "mixers": ["sliding_window", "gated_deltanet", "kda"],
        "options": {
            "sliding_window": {"window": 7, "sinks": 2},
            "gated_deltanet": {"window": 5, "window_sinks": 2},
            "kda": {"short_conv": 0},
        },
    },
]


def batch() -> GlobalBatch:
    """Micro-batches with other weights and numbers of loss tokens: none in one, and none in parts of one."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(8, 500, (ROWS, LENGTH + 1), generator=generator)
    in_loss = torch.arange(LENGTH) < torch.tensor([[0], [0], [48], [30], [11], [9]])
    weights = torch.rand(ROWS, LENGTH, generator=generator)
    batches = [
        MicroBatch(
            tokens[rows, :-1],
            tokens[rows, 1:],
            in_loss[rows].flatten().nonzero()[:, 0],
            loss_weights=weights[rows],
        )
        for rows in torch.arange(ROWS).split(2)
    ]
    return GlobalBatch(batches, int(in_loss.sum()), ROWS * LENGTH, {})


def step(teacher: Any, students: list[StudentForCausalLM], settings: Stage) -> tuple[Tensor, ...]:
    """Losses and gradients of one step of all students, whose parameters may move to flat buffers."""
    states = [StudentTrainState(str(number), student) for number, student in enumerate(students)]
    for state in states:
        state.begin_stage(settings)
    losses = TrainStep(teacher, states, settings, ProcessGroup("cpu"))(batch(), 0)["loss"]
    return losses, *(state.flat_grads.buffer for state in states)


def save(out: Path, teacher: Any, students: list[StudentForCausalLM], settings: Stage, rank: int) -> None:
    """Save them, and check that no activations wait for the garbage collector."""
    gc.disable()
    torch.save(step(teacher, students, settings), out / f"{rank}.pt")
    assert not any(isinstance(each, EarlierParts) for each in gc.get_objects())


OBJECTIVES = {
    "kd": {"objective": "kd", "loss": {"kl": 1.0, "ce": 0.5}},
    "recomputed": {"objective": "kd", "activation_checkpointing": "block"},
    "aligned": {"objective": "attention_output", "alignment_loss": {"normalize_by_teacher": True}},
}


@pytest.mark.parametrize("all_in_loss", [True, False])
def test_parts_hold_each_loss_token_once(all_in_loss: bool) -> None:
    """With what belongs to it: the label, its weight, and the teacher's output from a store."""
    whole = batch().micro_batches[1]
    if all_in_loss:
        whole = replace(whole, loss_indices=None)
    labels = whole.select(whole.labels)
    whole = replace(whole, top_ids=labels[:, None].int(), top_log_probs=labels[:, None].float())
    group: Any = None
    parts = [whole.part(SequenceParallel(group, rank, 3)) for rank in range(3)]
    for part in parts:
        found = part.select(part.labels)
        assert torch.equal(part.top_ids[:, 0], found.int())
        assert torch.equal(part.top_log_probs[:, 0], found.float())
    assert torch.equal(torch.cat([part.input_ids for part in parts], 1), whole.input_ids)
    assert torch.equal(torch.cat([part.loss_weights for part in parts], 1), whole.loss_weights)
    found = torch.cat([part.select(part.labels) for part in parts])
    assert torch.equal(found.sort().values, labels.sort().values)


@needs_loopback
@pytest.mark.parametrize(("name", "size"), [("kd", 3), ("recomputed", 2), ("aligned", 2)])
def test_parts_have_the_losses_and_gradients_of_whole_sequences(
    teacher: Any, stage: Any, tmp_path: Path, name: str, size: int
) -> None:
    options = {**OBJECTIVES[name], "max_grad_norm": None, "seq_len": LENGTH}
    whole, parts = (Stage.model_validate(stage("s", sequence_parallel=n, **options)) for n in (1, size))
    students = [build_student(teacher, seed=1, **each).train() for each in STUDENTS]
    processes = start(partial(save, tmp_path, teacher, students, parts), size)
    expected = step(teacher, students, whole)  # the processes have copies
    assert finish(processes) == [0] * size
    for rank in range(size):
        for found, wanted in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            assert wanted.abs().max() > 0
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())


def run(recipe: Recipe, out: Path, rank: int) -> None:
    distill(recipe, out, quiet=True, device="cpu")


def curve(out: Path) -> list[tuple[float, ...]]:
    return [(row["loss"], row["grad_norm"]) for row in read_jsonl(out / "metrics.jsonl")]


@needs_loopback
def test_a_resumed_run_is_equal_and_that_of_one_process(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    """Two groups of two processes, each of which has half of the batch and shares its sequences."""
    options = {"batch_size": 4, "tokens": 512, "micro_batch_size": 1}
    stages = [stage("align", "attention_output", **options), stage("kd", "kd", **options)]
    student = {"mixers": ["kda"], "softmax_layers": [1]}
    whole = small_recipe(teacher_folder, stages=stages, student=student)
    parts = whole.model_copy(
        update={"stages": [each.model_copy(update={"sequence_parallel": 2}) for each in whole.stages]}
    )
    saved = parts.model_copy(update={"checkpoint": CheckpointConfig(state_interval_seconds=0)})
    assert parts.hash == saved.hash == whole.hash
    run(whole, tmp_path / "whole", 0)
    assert finish(start(partial(run, parts, tmp_path / "parts"), 4)) == [0] * 4
    assert finish(start(partial(interrupted, saved, tmp_path / "resumed", steps=3), 4)) == [0] * 4
    assert finish(start(partial(run, parts, tmp_path / "resumed"), 4)) == [0] * 4
    assert len(curve(tmp_path / "parts")) == 4
    assert curve(tmp_path / "resumed") == curve(tmp_path / "parts")
    for found, expected in zip(curve(tmp_path / "parts"), curve(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "matrix_mixing"}, "objective matrix_mixing needs whole sequences"),
        (
            {"objective": "on_policy", "loss": {"direction": "jsd"}},
            "objective on_policy needs whole sequences",
        ),
        ({"objective": "kd_leaking_state"}, "objective kd_leaking_state needs whole sequences"),
        ({"packing": "documents"}, "packed documents cannot be shared"),
        ({"seq_len": 63}, r"'seq_len' \(63\) is not a multiple of 'sequence_parallel' \(2\)"),
    ],
)
def test_stages_that_need_whole_sequences_are_refused(stage: Any, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stage.model_validate(stage("s", **{"objective": "kd", "sequence_parallel": 2, **changes}))


def test_runs_that_cannot_share_sequences_are_refused(small_recipe: Any, stage: Any, teacher: Any) -> None:
    recipe = small_recipe("teacher", stages=[stage("s", "kd", sequence_parallel=2)], sharding="full")
    with pytest.raises(ConfigError, match="needs a multiple of as many processes, and this run has 3"):
        _check_processes(recipe, 3)
    _check_processes(recipe, 4)
    with pytest.raises(ConfigError, match="stage 's' shares sequences, which needs unsharded models"):
        is_sharded(recipe, 1000, world_size=2)
    check_parts(recipe.stages[0], {"teacher": teacher})
    with pytest.raises(ConfigError, match="'other' is of no family whose layers are known"):
        check_parts(recipe.stages[0], {"other": torch.nn.Module()})
    teacher.model.layers[1].self_attn = type("Stateless", (Mixer,), {"name": "stateless"})()
    with pytest.raises(ConfigError, match="layers of stateless, which cannot continue from a state"):
        check_parts(recipe.stages[0], {"student": teacher})

"""Held-out KL and perplexity during training: values, intervals, and that training is not affected."""

from contextlib import nullcontext
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from evalsuite.distill import Recipe, distill, load_recipe
from evalsuite.distill.data import documents as documents_of_sources
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training import held_out
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.held_out import HeldOut, HeldOutBatches, held_out_batches
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import ConfigError, DataError, read_jsonl
from evalsuite.foundation.strict import parse
from evalsuite.models import build_student, load_checkpoint
from evalsuite.models.decoder.build import to_decoder
from evalsuite.reports.records.loss_curves import parse_loss_curves
from tests.distill.stage_data import stage_data

FIELDS = {"validation_kl", "validation_ppl"}


def documents(batch: Any) -> list[tuple[int, int]]:
    """Start and end of every document in the flattened batch; of every sequence if they are not packed."""
    if batch.cu_seqlens is not None:
        return list(pairwise(batch.cu_seqlens.tolist()))
    length = batch.input_ids.shape[1]
    return [(row * length, (row + 1) * length) for row in range(batch.input_ids.shape[0])]


def by_hand(student: Any, teacher: Any, batches: list[Any]) -> tuple[float, float]:
    """Perplexity and KL over the loss tokens, each document alone, from whole rows of logits."""
    ce = kl = torch.zeros((), dtype=torch.float64)
    count = 0
    for batch in batches:
        for start, end in documents(batch):
            ids, labels = batch.input_ids.view(-1)[start:end], batch.labels.view(-1)[start:end]
            kept = torch.ones(end - start, dtype=torch.bool)
            if batch.loss_indices is not None:
                kept = torch.isin(torch.arange(start, end), batch.loss_indices)
            with torch.no_grad():
                ours, theirs = (m(ids[None]).logits[0].double().log_softmax(-1) for m in (student, teacher))
            ce = ce - ours.gather(-1, labels[:, None])[:, 0][kept].sum()
            kl = kl + (theirs.exp() * (theirs - ours)).sum(-1)[kept].sum()
            count += int(kept.sum())
    return exp(ce.item() / count), kl.item() / count


@pytest.mark.parametrize("packing", ["concat", "documents"])
def test_the_last_measurement_is_that_of_the_finished_student(
    teacher_folder: Path,
    teacher: Any,
    tokenizer: Any,
    small_recipe: Any,
    stage: Any,
    tmp_path: Path,
    packing: str,
) -> None:
    stages = [stage("align", "attention_output"), stage("kd", "kd", packing=packing, lr=1e-2)]
    recipe = small_recipe(teacher_folder, stages=stages, validation={"every_steps": 3, "tokens": 200})
    (folder,) = distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    rows = list(read_jsonl(tmp_path / "out" / "metrics.jsonl"))
    measured = [(row["stage"], row["step"]) for row in rows if row.keys() >= FIELDS]
    assert measured == [("align", 2), ("align", 3), ("kd", 2), ("kd", 3)]
    assert all(row.keys() >= FIELDS or not row.keys() & FIELDS for row in rows)
    batches = held_out_batches(recipe, recipe.stages[1], tokenizer, 4, torch.device("cpu"))
    assert sum(batch.input_ids.numel() for batch in batches) == 4 * 64
    perplexity, kl = by_hand(load_checkpoint(str(folder)).model, teacher, batches)
    assert rows[-1]["validation_ppl"] == pytest.approx(perplexity, rel=1e-4)
    assert rows[-1]["validation_kl"] == pytest.approx(kl, rel=1e-3)
    assert rows[-1]["validation_kl"] < rows[3]["validation_kl"]
    curve = (folder / "training.jsonl").read_bytes()
    assert [len(each.values) for each in parse_loss_curves(curve, "s", "training.jsonl")] == [4, 4]
    stored = [row["validation_kl"] for row in read_jsonl(folder / "training.jsonl") if row.keys() >= FIELDS]
    logged = [row["validation_kl"] for row in rows if row.keys() >= FIELDS]
    assert stored == pytest.approx(logged, rel=1e-5)


def test_validation_does_not_change_the_training(
    teacher_folder: Path, small_recipe: Any, tmp_path: Path
) -> None:
    recipes = {
        "plain": small_recipe(teacher_folder),
        "validated": small_recipe(teacher_folder, validation={"every_steps": 1, "tokens": 64}),
    }
    assert len({recipe.hash for recipe in recipes.values()}) == 1
    found = {}
    for name, recipe in recipes.items():
        distill(recipe, tmp_path / name, device="cpu", quiet=True)
        rows = read_jsonl(tmp_path / name / "metrics.jsonl")
        found[name] = [(row["step"], row["loss"], row["grad_norm"]) for row in rows]
    assert found["plain"] == found["validated"]


@pytest.mark.parametrize(
    ("sequences", "expected"), [(2, pytest.raises(DataError, match="no loss tokens")), (None, nullcontext())]
)
def test_held_out_completions_of_pocket_rows_have_loss_tokens(
    monkeypatch: pytest.MonkeyPatch, sequences: int | None, expected: Any
) -> None:
    """Of some sequences prompts leave no token of a completion, as of the first two of this mixture."""
    monkeypatch.setattr(documents_of_sources, "GROUP_SIZE", 512)
    monkeypatch.setattr(documents_of_sources, "POCKET_SHARD_SIZE", 1024)
    recipe = load_recipe("gendistill-2026:t17-combined-50-50-500m,pocket")
    stage, validation = recipe.stages[-1], recipe.validation
    assert validation is not None
    count = sequences or validation.tokens // stage.seq_len
    tokenizer = load_checkpoint("pocket").tokenizer
    with expected:
        assert held_out_batches(recipe, stage, tokenizer, count, torch.device("cpu"))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_held_out_batches_are_those_of_each_stage_and_shared_by_equal_ones(
    small_recipe: Any, stage: Any, tokenizer: Any, num_workers: int
) -> None:
    stages = [
        stage("align", "attention_output", seq_len=32),
        stage("kd", "kd"),
        stage("late", "kd", lr=1e-4, tokens=2048),
    ]
    recipe = small_recipe("unused", stages=stages)
    found = HeldOutBatches(recipe, recipe.stages, tokenizer, 200, num_workers=num_workers)
    for each, count in zip(recipe.stages, (7, 4, 4), strict=True):
        expected = held_out_batches(recipe, each, tokenizer, count, torch.device("cpu"))
        for ours, theirs in zip(found.get(each), expected, strict=True):
            torch.testing.assert_close(ours.input_ids, theirs.input_ids, rtol=0, atol=0)
            torch.testing.assert_close(ours.labels, theirs.labels, rtol=0, atol=0)
        assert found.is_read(each)
    assert found.get(recipe.stages[1]) is found.get(recipe.stages[2])
    assert found.get(recipe.stages[0]) is not found.get(recipe.stages[1])


def test_unreadable_held_out_documents_end_a_stage_after_its_first_step(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = held_out._read

    def failing(recipe: Recipe, each: Any, *rest: Any) -> Any:
        if each.name == "late":
            raise DataError("stage 'late': the held-out slice has no loss tokens")
        return read(recipe, each, *rest)

    monkeypatch.setattr(held_out, "_read", failing)
    stages = [stage("kd", "kd"), stage("late", "kd", seq_len=32)]
    recipe = small_recipe(teacher_folder, stages=stages, validation={"every_steps": 100, "tokens": 64})
    with pytest.raises(DataError, match="'late': the held-out slice"):
        distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    rows = [row["stage"] for row in read_jsonl(tmp_path / "out" / "metrics.jsonl")]
    assert rows.count("kd") == 4
    assert rows.count("late") <= 1


@pytest.mark.long
def test_without_a_teacher_perplexity_alone_is_measured(
    teacher_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    (start,) = distill(small_recipe(teacher_folder), tmp_path / "start", device="cpu", quiet=True)
    recipe = small_recipe(
        None,
        student={"mixers": ["gated_deltanet"], "initial_checkpoints": {"gated_deltanet": str(start)}},
        stages=[stage("sft", "sft", loss_mask="completion", packing="documents", lr=1e-2)],
        validation={"every_steps": 2},
    )
    distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    rows = list(read_jsonl(tmp_path / "out" / "metrics.jsonl"))
    found = [row["validation_ppl"] for row in rows if "validation_ppl" in row]
    assert len(found) == 2
    assert found[1] < found[0]
    assert not any("validation_kl" in row for row in rows)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "local", "files": ["a"]}, r"set data.text.subset: train, so that no stage trains on them"),
        ({"kind": "hub", "dataset": "a/b", "subset": "held_out"}, r"set data.text.subset: train"),
        ({"kind": "responses", "prompt_source": "text"}, r"data.text \(responses\) has none"),
    ],
)
def test_training_on_held_out_documents_is_refused(
    small_recipe: Any, stage: Any, data: dict[str, Any], message: str
) -> None:
    value = small_recipe("unused").model_dump()
    value |= {"data": {"text": data}, "stages": [stage("kd", "kd", data="text")]}
    parse(value, Recipe, "recipe.yaml")
    with pytest.raises(ConfigError, match=r"^recipe.yaml: 'validation' needs held-out documents.*" + message):
        parse({**value, "validation": {"every_steps": 5}}, Recipe, "recipe.yaml")
    parse({**value, "validation": {"every_steps": 5}} | {"data": {"text": TRAIN}}, Recipe, "recipe.yaml")


TRAIN = {"kind": "local", "files": ["a"], "subset": "train"}


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        found = [each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        self.elements = max(self.elements, *found, 0)
        return result


@pytest.mark.parametrize("packing", ["concat", "documents"])
def test_validation_takes_no_more_memory_than_training(
    teacher: Any, tokenizer: Any, small_recipe: Any, stage: Any, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its values do not depend on its micro-batches, nor on its chunks of logits."""
    found, largest = {}, {}
    for micro in (1, 2):
        recipe = small_recipe("unused", stages=[stage("kd", "kd", packing=packing, micro_batch_size=micro)])
        batches = held_out_batches(recipe, recipe.stages[0], tokenizer, 6, torch.device("cpu"))
        assert [batch.input_ids.shape[0] for batch in batches] == [micro] * (6 // micro)
        student: Any = build_student(teacher, "gated_deltanet")
        with LargestTensor() as validation:
            found[micro] = HeldOut(teacher, batches).losses(student)
        if packing == "concat":
            state = StudentTrainState("s", student)
            state.begin_stage(recipe.stages[0])
            step = TrainStep(teacher, [state], recipe.stages[0], ProcessGroup("cpu"))
            with LargestTensor() as training:
                step.trial(next(stage_data(recipe, tokenizer)))
            assert validation.elements == training.elements
        largest[micro] = validation.elements
    assert largest[1] < largest[2]
    assert found[1] == pytest.approx(found[2], rel=1e-6)
    vocabulary = student.config.vocab_size
    monkeypatch.setattr(held_out, "MAX_LOGITS", 16 * vocabulary)
    with LargestTensor() as chunked:
        assert HeldOut(teacher, batches).losses(student) == pytest.approx(found[2], rel=1e-6)
    assert chunked.elements < largest[2]


def test_the_measured_sequences_do_not_depend_on_the_micro_batch(
    small_recipe: Any, stage: Any, tokenizer: Any
) -> None:
    """Their number is not rounded up to whole micro-batches."""
    found = []
    for micro in (1, 3, 4):
        sizes = {"batch_size": 12, "tokens": 768, "micro_batch_size": micro}
        recipe = small_recipe("unused", stages=[stage("kd", "kd", **sizes)])
        batches = held_out_batches(recipe, recipe.stages[0], tokenizer, 7, torch.device("cpu"))
        found.append(torch.cat([batch.input_ids for batch in batches]))
        assert torch.equal(found[0], found[-1])
    assert len(found[0]) == 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_validation_with_a_large_vocabulary_fits_with_training() -> None:
    """65,536 tokens over 262,144 logits, in micro-batches of 8 × 1,024."""
    config = LlamaConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        torch.manual_seed(0)
        teacher: Any = to_decoder(LlamaForCausalLM(config).bfloat16().eval().requires_grad_(False))
    student: Any = build_student(teacher, "gated_deltanet").float()
    settings = {"objective": "kd", "data": "x", "lr": 1e-4, "seq_len": 1024, "batch_size": 8}
    kd = Stage.model_validate({"name": "kd", "tokens": 8192 * 10, **settings})
    state = StudentTrainState("s", student, torch.bfloat16)
    state.begin_stage(kd)
    ids = torch.randint(0, 262_144, (64, 1024), device="cuda")
    batches = [MicroBatch(rows, rows) for rows in ids.split(8)]
    step = TrainStep(teacher, [state], kd, ProcessGroup("cuda"))
    for number in range(4):
        step(GlobalBatch(batches[:1], 8192, 8192, {}), number)
    trained = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ce, kl = HeldOut(teacher, batches).losses(student)
    assert ce > 0
    assert kl > 0
    assert torch.cuda.max_memory_allocated() < trained

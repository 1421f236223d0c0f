"""Complete runs on a tiny teacher: stages, lineage, checkpoints, exact resumption, and refusals."""

import json
import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from evalsuite.distill import Recipe, TrainingError, distill
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import CheckpointError, ConfigError, RunFolderError, read_jsonl
from evalsuite.models import build_student, load_checkpoint, weights_id
from tests.distill.stage_data import stage_data
from tests.distill.training.saved_states import full_disk, num_states, read_state

MIXERS = ["linear_attention", "gated_deltanet"]


def curves(out: Path) -> list[tuple]:
    return [
        (row["stage"], row["step"], row["student"], row["loss"], row["grad_norm"])
        for row in read_jsonl(out / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, teacher_folder, small_recipe):
    """One uninterrupted run of two students."""
    torch.set_num_threads(1)
    recipe = small_recipe(teacher_folder, student={"mixers": MIXERS})
    out = tmp_path_factory.mktemp("run") / "out"
    return recipe, out, distill(recipe, out, quiet=True, device="cpu")


def test_a_run_writes_loadable_students_with_lineage(finished, teacher_folder):
    recipe, out, folders = finished
    assert folders == [out / mixer for mixer in MIXERS]
    for folder, mixer in zip(folders, MIXERS, strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.mixers == [mixer] * 3
        lineage = json.loads((folder / "lineage.json").read_text())
        teacher = {"path": str(teacher_folder), "weights_id": weights_id(teacher_folder), "ancestors": []}
        assert lineage["teacher"] == {**teacher, "revision": None}
        assert lineage["recipe"]["hash"] == recipe.hash
        assert [(stage["name"], stage["objective"], stage["tokens"]) for stage in lineage["stages"]] == [
            ("mixer", "attention_output", 512),
            ("block", "hidden_state", 512),
            ("kd", "kd", 512),
        ]
        assert lineage["complete"]
        assert lineage["tokens"] == 1536
        assert lineage["versions"]["torch"]


def test_stages_run_in_order_for_all_students(finished):
    _, out, _ = finished
    assert [row[:3] for row in curves(out)] == [
        (stage, step, mixer) for stage in ("mixer", "block", "kd") for step in range(4) for mixer in MIXERS
    ]


def test_each_stage_saves_a_checkpoint_with_its_progress(finished):
    _, out, _ = finished
    for mixer in MIXERS:
        assert {path.name for path in (out / "checkpoints" / mixer).iterdir()} == {"mixer-512", "block-1024"}
        lineage = json.loads((out / "checkpoints" / mixer / "mixer-512" / "lineage.json").read_text())
        assert not lineage["complete"]
        assert [stage["name"] for stage in lineage["stages"]] == ["mixer"]


def test_layerwise_stages_train_mixers_only(finished, teacher_folder):
    _, out, _ = finished
    teacher = AutoModelForCausalLM.from_pretrained(teacher_folder).state_dict()
    student = AutoModelForCausalLM.from_pretrained(
        out / "checkpoints" / "gated_deltanet" / "block-1024"
    ).state_dict()
    for name, tensor in student.items():
        if ".self_attn." not in name:
            assert torch.equal(tensor, teacher[name]), name
    trained = AutoModelForCausalLM.from_pretrained(out / "gated_deltanet").state_dict()
    assert not torch.equal(trained["model.norm.weight"], teacher["model.norm.weight"])


def test_students_trained_together_equal_students_trained_alone(finished, tmp_path):
    recipe, out, _ = finished
    (alone,) = distill(recipe, tmp_path / "alone", mixers=["gated_deltanet"], quiet=True, device="cpu")
    shared = load_file(out / "gated_deltanet" / "model.safetensors")
    for name, tensor in load_file(alone / "model.safetensors").items():
        assert torch.equal(tensor, shared[name]), name


def test_a_finished_run_is_not_repeated(finished):
    recipe, out, folders = finished
    before = (out / "metrics.jsonl").read_bytes()
    assert distill(recipe, out, quiet=True, device="cpu") == folders
    assert (out / "metrics.jsonl").read_bytes() == before


def start(recipe: Recipe, out: Path, signalled: Path) -> multiprocessing.Process:
    """Run in a forked process, which is faster than importing torch again.

    It waits for the file `signalled` in its fourth step of `kd`, so as not to end before a signal.
    """
    step = TrainStep.__call__

    def waiting(self: TrainStep, batch: GlobalBatch, number: int) -> dict[str, torch.Tensor]:
        while self._stage.name == "kd" and number == 3 and not signalled.exists():
            time.sleep(0.002)
        return step(self, batch, number)

    def run() -> None:
        TrainStep.__call__ = waiting
        try:
            distill(recipe, out, quiet=True, device="cpu")
        except KeyboardInterrupt:
            os._exit(130)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def test_a_killed_and_resumed_run_is_bit_identical(finished, tmp_path):
    recipe, out, folders = finished
    always = recipe.model_copy(update={"checkpoint": CheckpointConfig(state_interval_seconds=0)})
    again = tmp_path / "again"
    for after in (2, 5, 9):
        process = start(always, again, tmp_path / "never")
        while num_states(again / "state") < after and process.is_alive():
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    distill(always, again, quiet=True, device="cpu")
    assert curves(again) == curves(out)
    for folder in folders:
        steps, expected = (
            [{**row, "seconds": None} for row in read_jsonl(each / "training.jsonl")]
            for each in (again / folder.name, folder)
        )
        assert steps == expected
        found = load_file(again / folder.name / "model.safetensors")
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert torch.equal(found[name], tensor), name


def test_sigterm_saves_the_state_and_the_run_resumes(teacher_folder, tmp_path, small_recipe, stage):
    stages = [stage("align", "attention_output"), stage("kd", "kd", tokens=128 * 8)]
    recipe = small_recipe(teacher_folder, stages=stages)
    uninterrupted, again = tmp_path / "uninterrupted", tmp_path / "again"
    process = start(recipe, again, signalled := tmp_path / "signalled")
    while num_states(again / "state") < 1 and process.is_alive():
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGTERM)
    signalled.touch()
    process.join()
    assert process.exitcode == 130
    assert num_states(again / "state") == 2
    assert not (again / "gated_deltanet").exists()
    distill(recipe, again, quiet=True, device="cpu")
    distill(recipe, uninterrupted, quiet=True, device="cpu")
    assert curves(again) == curves(uninterrupted)


def test_a_nan_loss_stops_training_and_saves_the_batch(teacher_folder, tmp_path, small_recipe, stage):
    wild = stage("kd", "kd", lr=1e30, max_grad_norm=None, schedule={"kind": "constant", "warmup_ratio": 0})
    recipe = small_recipe(teacher_folder, stages=[wild])
    with pytest.raises(
        TrainingError, match=r"stage 'kd', step \d: gated_deltanet: the loss is nan.*failed/kd-"
    ):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    (saved,) = (tmp_path / "out" / "failed").glob("*.safetensors")
    assert load_file(saved)["input_ids"].shape == (2, 64)
    assert not (tmp_path / "out" / "gated_deltanet").exists()


def test_a_run_folder_belongs_to_one_recipe(finished, tmp_path):
    recipe, out, _ = finished
    other = recipe.model_copy(update={"seed": 1})
    with pytest.raises(RunFolderError, match=r"holds another run \(of recipe 'small'; differs in seed\)"):
        distill(other, out, quiet=True, device="cpu")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        distill(recipe, tmp_path, quiet=True, device="cpu")


def test_a_full_disk_keeps_the_previous_state(finished, tmp_path, monkeypatch):
    recipe, _, _ = finished
    recipe = recipe.model_copy(update={"checkpoint": CheckpointConfig(state_interval_seconds=0)})
    with full_disk(monkeypatch, call=3), pytest.raises(RunFolderError, match="No space left"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    progress, tensors = read_state(tmp_path / "out" / "state")
    assert progress.step == 2
    assert "random" in tensors
    assert [path.name for path in (tmp_path / "out" / "state").iterdir() if path.is_dir()] == ["000002"]


def test_invalid_layers_mixers_devices_and_teachers_are_refused(teacher_folder, tmp_path, small_recipe):
    for number, (changes, error, message) in enumerate(
        [
            ({"student": {"softmax_layers": [7]}}, ConfigError, "layers 0 to 2, not \\[7\\]"),
            ({"student": {"softmax_layers": "nowhere.json"}}, ConfigError, "no such file"),
            ({"student": {"mixers": ["gated_deltnet"]}}, ConfigError, "did you mean 'gated_deltanet'"),
        ]
    ):
        with pytest.raises(error, match=message):
            distill(small_recipe(teacher_folder, **changes), tmp_path / str(number), quiet=True, device="cpu")
    with pytest.raises(CheckpointError, match="nowhere"):
        distill(small_recipe(tmp_path / "nowhere"), tmp_path / "t", quiet=True, device="cpu")
    with pytest.raises(ConfigError, match="unknown device"):
        distill(small_recipe(teacher_folder), tmp_path / "d", quiet=True, device="gpu")


def test_different_vocabularies_are_refused(finished, tmp_path, small_recipe, stage, tokenizer):
    from evalsuite.distill.recipe.config import ArchitectureConfig
    from tests.distill.random_models import build_random_model

    _, out, _ = finished
    tiny = ArchitectureConfig(
        tokenizer="pocket", hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, intermediate_size=16, max_position_embeddings=64,
    )  # fmt: skip
    other = build_random_model(tiny, 500, tokenizer, seed=0)
    other.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    recipe = small_recipe(
        tmp_path / "other",
        student={"initial_checkpoints": {"gated_deltanet": str(out / "gated_deltanet")}},
        stages=[stage("kd", "kd")],
    )
    with pytest.raises((ConfigError, CheckpointError), match="vocabular"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")


def test_a_hybrid_reads_its_softmax_layers_from_a_selection_file(
    teacher_folder, tmp_path, small_recipe, stage
):
    (tmp_path / "layers.json").write_text('{"layers": [1]}')
    recipe = small_recipe(
        teacher_folder,
        student={"mixers": ["gla"], "softmax_layers": str(tmp_path / "layers.json")},
        stages=[stage("align", "attention_output"), stage("kd", "kd", trainable="no_softmax")],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    student = AutoModelForCausalLM.from_pretrained(folder)
    teacher = AutoModelForCausalLM.from_pretrained(teacher_folder).state_dict()
    assert student.config.mixers == ["gla", "softmax", "gla"]
    for name, tensor in student.state_dict().items():
        frozen = "embed" in name or "lm_head" in name or ".1.self_attn." in name
        assert torch.equal(tensor, teacher[name]) == frozen if name in teacher else True, name


def test_post_training_continues_from_a_student_without_teacher(finished, tmp_path, small_recipe, stage):
    _, out, _ = finished
    recipe = small_recipe(
        None,
        student={"initial_checkpoints": {"gated_deltanet": str(out / "gated_deltanet")}},
        stages=[stage("tune", "sft", loss_mask="completion", packing="documents")],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    lineage = json.loads((folder / "lineage.json").read_text())
    assert lineage["teacher"] is None
    before = load_file(out / "gated_deltanet" / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    assert any(not torch.equal(after[name], before[name]) for name in after)


@pytest.mark.long
def test_gradient_accumulation_affects_rounding_only(teacher_folder, tmp_path, small_recipe, stage):
    found = []
    for micro in (4, 1):
        options = {
            "batch_size": 4,
            "micro_batch_size": micro,
            "loss_mask": "completion",
            "packing": "documents",
            "tokens": 1024,
        }
        recipe = small_recipe(
            teacher_folder,
            stages=[stage("align", "attention_output", **options), stage("kd", "kd", **options)],
        )
        distill(recipe, tmp_path / str(micro), quiet=True, device="cpu")
        found.append([row[3:] for row in curves(tmp_path / str(micro))])
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("objective", ["kd", "sft", "attention_output"])
def test_a_batch_without_loss_tokens_changes_no_weights(teacher, stage, objective):
    chosen = Stage.model_validate(
        stage("s", objective, optimizer={"weight_decay": 0.0}, schedule={"kind": "constant"})
    )
    train_state = StudentTrainState("student", build_student(teacher, "gla", seed=1).train())
    train_state.begin_stage(chosen)
    before = {name: tensor.clone() for name, tensor in train_state.master_weights.params.items()}
    tokens = torch.arange(8, 40).view(2, 16)
    batch = MicroBatch(tokens, tokens, torch.zeros(0, dtype=torch.int64))
    train_step = TrainStep(teacher, [train_state], chosen, ProcessGroup("cpu"))
    columns = train_step(GlobalBatch([batch], 0, 32, {}), 5)
    assert {*chosen.columns, "grad_norm"} <= columns.keys()
    assert not any(values.any() for values in columns.values())
    assert all(
        torch.equal(before[name], tensor) for name, tensor in train_state.master_weights.params.items()
    )


def test_a_failed_capture_leaves_no_gradients(teacher, stage, monkeypatch):
    """The capture fails in a backward pass, which leaves gradients on the bf16 copies."""
    chosen = Stage.model_validate(stage("s", "kd", schedule={"kind": "constant"}))
    tokens = torch.arange(8, 40).view(2, 16)
    data = GlobalBatch([MicroBatch(tokens, tokens)], 32, 32, {})

    @contextmanager
    def capturing(graph, **_):
        for weight in train_states[0].parameters.values():
            weight.grad = torch.ones_like(weight)
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    found = []
    teacher = teacher.bfloat16()
    for graphs in (False, True):
        train_states = [
            StudentTrainState(mixer, build_student(teacher, mixer, seed=1).train(), torch.bfloat16)
            for mixer in MIXERS
        ]
        for train_state in train_states:
            train_state.begin_stage(chosen)
        train_step = TrainStep(teacher, train_states, chosen, ProcessGroup("cpu"))
        train_step._cuda_graphs = graphs
        norms = torch.stack([train_step(data, number)["grad_norm"] for number in range(4)])
        assert not train_step._captured
        assert not train_step._cuda_graphs
        found.append(norms)
    assert torch.equal(*found)


def test_checkpoints_at_listed_token_counts(teacher_folder, tmp_path, small_recipe, stage):
    recipe = small_recipe(
        teacher_folder, stages=[stage("kd", "kd", tokens=1280)], checkpoint={"save_tokens": [256, 1000]}
    )
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    names = {path.name for path in (tmp_path / "out" / "checkpoints" / "gated_deltanet").iterdir()}
    assert names == {"kd-256", "kd-1024"}


def test_a_variant_continues_from_the_student_of_another(teacher_folder, tmp_path, small_recipe, stage):
    stages = [stage("kd", "kd", tokens=256)]
    first = small_recipe(teacher_folder, stages=stages)
    (made,) = distill(first, tmp_path / "variants" / "first", quiet=True, device="cpu")
    second = small_recipe(
        teacher_folder,
        stages=[{**stages[0], "lr": 1e-9}],
        student={"initial_checkpoints": {"gated_deltanet": ":first"}},
        variants={"first": {}},
    )
    (further,) = distill(second, tmp_path / "variants" / "second", quiet=True, device="cpu")
    start, end, fresh = (
        load_checkpoint(folder).model.model.layers[0].self_attn.q_proj.weight
        for folder in (made, further, teacher_folder)
    )
    assert torch.allclose(start, end, atol=1e-6)
    assert not torch.allclose(start, fresh, atol=1e-4)
    with pytest.raises(ConfigError, match=r"its variant 'first', which is not in"):
        distill(second, tmp_path / "elsewhere" / "second", quiet=True, device="cpu")


def test_every_run_of_a_recipe_reads_the_same_batches(small_recipe, tokenizer):
    recipe = small_recipe("unused")
    first, second = (next(stage_data(recipe, tokenizer)) for _ in range(2))
    assert torch.equal(first.micro_batches[0].input_ids, second.micro_batches[0].input_ids)
